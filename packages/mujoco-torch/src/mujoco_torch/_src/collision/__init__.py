"""Contact detection: the static pair list of a model, and the closed-form colliders."""
