MISTAKES = ()
ASK = {}
check_multihead = check_block = None
