def usable(x): return False
