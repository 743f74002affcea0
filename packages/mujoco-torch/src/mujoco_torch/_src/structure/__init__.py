"""What ``put_model`` derives from an MjModel: one module per part, each function giving static values and arrays."""
