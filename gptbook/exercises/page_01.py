"""The checks of page 1, text into numbers: plain Python, no torch."""

import inspect
import random
import re

from gptbook.exercises.answers import (
    Wrong,
    ask,
    complaint,
    explain,
    listed,
    need_function,
    one_line,
    shown,
    whole_number,
)

TEXTS = (
    "To be, or not to be:\n\tthat is the Question.  ",
    "ÄÖÜ ß é e\u0301, Ω and 世界 😀!\r\n",  # é in both spellings: normalising would lose one of them
    "zzzz",
)


def round_trip(make) -> str:
    """make(text) -> (encode, decode), inverse to each other, with ids 0..V-1."""
    need_function(make, "make(text)")
    pairs = [_pair(make, text) for text in TEXTS]
    for text, (encode, decode, first) in zip(TEXTS, pairs, strict=True):
        _same_as_before(text, encode, first)
        _check_ids(text, first)
        symbols, draw = sorted(set(text)), random.Random(1)
        strings = [text, "", symbols[0], text[::-1], *("".join(draw.choices(symbols, k=n)) for n in (2, 9, 40))]
        # All are encoded before any is decoded: a decode that remembers the last string gets no further.
        coded = [ask(encode, f"encode({_brief(string)})", string) for string in strings]
        for string, ids in zip(strings, coded, strict=True):
            what = f"decode(encode({_brief(string)}))"
            _compare(string, ask(decode, what, ids), what)
    return f"every string over the characters of {len(TEXTS)} texts came back unchanged, the empty one too"


def _brief(text) -> str:
    return one_line(repr(text), 30)


def _pair(make, text):
    """encode, decode and the ids of the text itself, asked for before `make` is called again."""
    pair = ask(make, f"make({_brief(text)})", text)
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(map(callable, pair)):
        raise Wrong(f"make must return two functions, encode and then decode, got {shown(pair)}")
    encode, decode = pair
    try:
        turned = encode(decode(text)) == text
    except Exception:
        turned = False
    what = f"encode({_brief(text)})"
    if turned:
        raise Wrong("make returns its two functions in the wrong order: encode comes first, then decode")
    ids = listed(ask(encode, what, text), what)
    return encode, decode, [whole_number(i, f"every id in {what}") for i in ids]


def _same_as_before(text, encode, first):
    try:
        again = [int(i) for i in encode(text)]
    except Exception:
        again = None
    if again != first:
        raise Wrong("encode changed once make was called for another text: each call needs tables of its own")


def _check_ids(text, ids):
    if len(ids) != len(text):
        raise Wrong(f"encode({_brief(text)}) gives {len(ids)} ids for {len(text)} characters: each gets exactly one")
    of_id, of_symbol = {}, {}
    for symbol, i in zip(text, ids, strict=True):
        other = of_id.setdefault(i, symbol)
        if other != symbol:
            case = other.lower() == symbol.lower()
            why = "upper and lower case are different characters" if case else "decode cannot tell them apart"
            raise Wrong(f"the characters {other!r} and {symbol!r} share the id {i}: {why}")
        if of_symbol.setdefault(symbol, i) != i:
            raise Wrong(f"the character {symbol!r} has the id {of_symbol[symbol]} once and {i} later: it needs one")
    V = len(of_id)
    if set(of_id) == set(range(V)):
        return
    if all(ord(symbol) == i for i, symbol in of_id.items()):
        raise Wrong(f"the ids are Unicode's numbers: with {V} different characters they must be 0 to {V - 1}, no gaps")
    if set(of_id) == set(range(1, V + 1)):
        raise Wrong(f"the ids run from 1 to {V}: they must start at 0, as the rows of a table do")
    got = f"{min(of_id)} to {max(of_id)} with gaps or from the wrong start"
    raise Wrong(f"with {V} different characters the ids must be 0 to {V - 1}, each used, got {got}")


def _compare(string, back, what):
    if back == string and isinstance(back, str):
        return
    if not isinstance(back, str):
        raise Wrong(f"{what} must give a text, got {shown(back)}")
    if back == string.strip() or back == string.rstrip():
        raise Wrong(f"{what} lost spaces or line ends at the border of the text: they are characters too")
    if len(string) > 1 and back == " ".join(string):
        raise Wrong(f"{what} puts spaces between the characters: join them with nothing")
    if back.lower() == string.lower():
        raise Wrong(f"{what} lost upper and lower case")
    at = next((i for i, (a, b) in enumerate(zip(string, back, strict=False)) if a != b), min(len(string), len(back)))
    raise Wrong(f"{what} gives {_brief(back)}: the two differ from position {at} on")


def shared_targets(shared) -> str:
    """shared(train_starts, val_starts, block_size) -> how many positions are targets of windows of both kinds."""
    form = "shared(train_starts, val_starts, block_size)"
    need_function(shared, form)
    draw = random.Random(2)
    cases = [
        ([0], [3], 4),  # targets 1..4 and 4..7 share position 4
        ([0], [4], 4),  # neighbours share nothing
        ([7, 7, 2], [4, 6, 4], 3),  # unsorted, with repetitions
        ([0, 40], [20, 60], 5),  # apart, though each lies within the other's range
        ([], [1, 2], 3),
        ([1, 2], [], 3),
        *((draw.choices(range(60), k=draw.randint(4, 9)), draw.choices(range(60), k=5), T) for T in (1, 4, 7)),
    ]
    got = []
    for train, validation, T in cases:
        what = f"shared({train}, {validation}, {T})"
        value = ask(shared, what, list(train), list(validation), T)
        if isinstance(value, set | frozenset | list | tuple):
            raise Wrong(f"{what} returned the positions themselves: return how many they are")
        got.append(whole_number(value, what))
    right = [_shared(*case) for case in cases]
    if got == right:
        return f"right for all {len(cases)} sets of windows, overlapping, repeated, apart and empty"
    if sentence := explain(got, cases, SHARED_MISTAKES, int.__eq__):
        raise Wrong(sentence)
    case, mine, true = next(triple for triple in zip(cases, got, right, strict=True) if triple[1] != triple[2])
    raise Wrong(f"for train_starts {case[0]}, val_starts {case[1]} and block_size {case[2]} it is {true}, not {mine}")


def _targets(starts, T, first=1, last=0):
    """The target positions of windows one by one, with repetitions; `first` and `last` move the two ends."""
    return [p for s in starts for p in range(s + first, s + T + 1 + last)]


def _shared(train, validation, T):
    """Brute force: look at every position of the text."""
    seen, asked = _targets(train, T), _targets(validation, T)
    return sum(p in seen and p in asked for p in range(200))


def _both(train, validation, T, **ends):
    return len(set(_targets(train, T, **ends)) & set(_targets(validation, T, **ends)))


# Counting the inputs of both kinds is no mistake of the result: both sets move by one together.
SHARED_MISTAKES = (
    (
        "each window was given one position too many: of the block_size + 1 tokens, the first is only ever an input",
        lambda a, b, T: _both(a, b, T, first=0),
    ),
    ("each window was given one target too few: it has block_size of them", lambda a, b, T: _both(a, b, T, last=-1)),
    (
        "the validation targets were compared with the training inputs: compare targets with targets",
        lambda a, b, T: len(set(_targets(a, T, 0, -1)) & set(_targets(b, T))),
    ),
    (
        "the validation inputs were compared with the training targets: compare targets with targets",
        lambda a, b, T: len(set(_targets(a, T)) & set(_targets(b, T, 0, -1))),
    ),
    (
        "a position is counted once for every validation window that has it: count distinct positions",
        lambda a, b, T: sum(p in set(_targets(a, T)) for p in _targets(b, T)),
    ),
    (
        "a position is counted once for every training window that has it: count distinct positions",
        lambda a, b, T: sum(p in set(_targets(b, T)) for p in _targets(a, T)),
    ),
    (
        "a position is counted once for every pair of windows that have it: count distinct positions",
        lambda a, b, T: sum(p == q for p in _targets(a, T) for q in _targets(b, T)),
    ),
    (
        "only equal starts were counted: windows with different starts overlap too",
        lambda a, b, T: len(set(a) & set(b)),
    ),
    (
        "validation windows were counted, not the positions of the text that are their targets",
        lambda a, b, T: sum(any(p in _targets(a, T) for p in _targets([s], T)) for s in b),
    ),
    (
        "all positions of either kind were counted: only those that both kinds have are asked for",
        lambda a, b, T: len(set(_targets(a, T)) | set(_targets(b, T))),
    ),
    (
        "the windows were taken for one stretch without gaps, from the first start to the last",
        lambda a, b, T: len(_stretch(a, T) & _stretch(b, T)),
    ),
)  # fmt: skip


def _stretch(starts, T):
    return set(range(min(starts) + 1, max(starts) + T + 1)) if starts else set()


def unseen_character(encode) -> str:
    """encode(text, ids) -> ids; a ValueError that names the first unknown character and its position, from 0."""
    need_function(encode, "encode(text, ids)")
    ids = {"a": 0, "b": 4, "c": 2, " ": 7, "\n": 9}  # not the positions of anything: they must be looked up
    for text in ("abc", "c\nb a", "a", ""):
        _check_known(encode, text, ids)
    texts = ("abca€c", "ßabc abc", "a\nbcabcabc aaЖ", "ab cabcA a", "abcabc ab§cab¤b", "b€a€", "ab\tb")
    named = {_check_unknown(encode, text, ids) for text in texts}
    if named == {"first"}:
        return "known characters become their ids, the first unknown one is named with its position"
    if named == {"none"}:
        raise Wrong("the message names the character, but not its position")
    if named == {"one more"}:
        raise Wrong("the positions in the message are counted from 1: count from 0, as Python does")
    if named == {"first", "last"}:
        raise Wrong(
            "where several unknown characters stand in the text, the position must be the first one's, not the last's"
        )
    raise Wrong(
        "the position in the message is wrong or missing for some texts: it is where the first unknown character stands"
    )


def _check_known(encode, text, ids):
    given, what = dict(ids), f"encode({_brief(text)}, ids)"
    try:
        value = encode(text, given)
    except (Exception, SystemExit) as error:
        if isinstance(error, ValueError) and "a" in text:
            hint = ": an id may be 0, and 0 counts as false" if _names("a", str(error)) or text == "a" else ""
            raise Wrong(f"{what} raised ValueError although every character has an id{hint}") from None
        raise Wrong(complaint(what, error)) from None
    if inspect.isgenerator(value):
        raise Wrong(f"{what} returned a generator, which raises nothing before it is used: return a list")
    got = [whole_number(i, f"every id in {what}") for i in listed(value, what)]
    if given != ids:
        raise Wrong(f"{what} changed the table of ids: only look things up in it")
    if got != [ids[c] for c in text]:
        raise Wrong(f"{what} with ids {ids} must be the ids from the table, one for each character, got {got}")


def _check_unknown(encode, text, ids):
    """The position in the message: that of the "first" or "last" unknown character, "one more", "other", "none"."""
    given, what = dict(ids), f"encode({_brief(text)}, ids)"
    first = next(i for i, c in enumerate(text) if c not in ids)
    try:
        value = encode(text, given)
    except ValueError as error:
        message = str(error)
    except Exception as error:
        raise Wrong(f"{what} raised {type(error).__name__}, and a ValueError is asked for") from None
    except SystemExit:
        raise Wrong(f"{what} ended the program: raise a ValueError instead") from None
    else:
        _explain_silence(what, value, text, given, ids)
    # A message may quote the whole text; that alone names no character.
    for quoted in (repr(text), text):
        message = message.replace(quoted, " ")
    if not _names(text[first], message):
        last = [c for c in text if c not in ids][-1]
        if last != text[first] and _names(last, message):
            raise Wrong("where several characters are unknown, the message must name the first of them, not the last")
        raise Wrong(f"the message of the ValueError does not say which character is unknown: {_brief(message)}")
    numbers = [int(n) for n in re.findall(r"(?<![\w+\\])\d+(?!\w)", message)]
    last = max(i for i, c in enumerate(text) if c not in ids)
    for kind, position in (("first", first), ("one more", first + 1), ("last", last)):
        if position in numbers:
            return kind
    return "other" if numbers else "none"


def _explain_silence(what, value, text, given, ids):
    if given != ids:
        raise Wrong(f"{what} gave the unknown character a new id: the table belongs to a trained model and is fixed")
    if value is None:
        raise Wrong(f"{what} returned None: raise the ValueError, do not only make or print it")
    if isinstance(value, BaseException):
        raise Wrong(f"{what} returned the {type(value).__name__}: raise it")
    known = sum(c in ids for c in text)
    if hasattr(value, "__len__") and len(value) == known:
        raise Wrong(f"{what} dropped the unknown character in silence: raise a ValueError")
    raise Wrong(f"{what} gave the unknown character some id, {shown(value)}: raise a ValueError")


def _names(character, message) -> bool:
    """Whether a message names the character: itself, escaped, or by its number in Unicode."""
    forms = (character, repr(character)[1:-1], ascii(character)[1:-1], f"U+{ord(character):04X}")
    if character.isascii() and character.isalpha():  # a letter stands in every message: it must stand alone
        return re.search(rf"(?<!\w){character}(?!\w)", message) is not None or forms[3] in message
    return any(form in message for form in forms)
