MISTAKES = ()
ASK = {}
