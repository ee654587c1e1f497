pairs = None
