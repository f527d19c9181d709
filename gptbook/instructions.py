"""The book's own instruction set: small tasks on words of four letters, and the form in which a chat is written down.

All of it is spelled with the 65 signs of Tiny Shakespeare, and a task with its answer fits into 64. Left out: whatever
one would ask an assistant for.
"""

from dataclasses import dataclass

END = "$"  # closes an answer: one token, which no answer needs

_WORDS = """
    acid army axle baby back ball band bank barn bath bead beam bean bear beef bell belt bird boar boat body bone book
    boot bowl bull cage cake calf camp cane card cart cave city clam clay club coal coat coin cook cord cork corn cove
    crab crew crop dawn deer desk dice dirt dish dock doll dome dove drum duck dune dusk dust face farm fawn fern film
    fire fish flag flax flea foam foot fork frog fuel gate gift glue goat gold gown grid gulf gull hair hall hand hare
    harp hawk heel herb herd hill hive home hood hoof hook horn hour inch iron jail joke king kite knee knot lace lake
    lamb lamp land lane lark lava lawn leaf lily lime line lion lock loaf loom lord maid mare mask mast maze meal milk
    mill mine mint mist moat mole moon moss moth mule nail neck nest news noon nose note oath oven page palm park path
    peak pear pest pier pine pipe plum poem pond pony pool pump rail rain raft reed ring road rock roof room root rope
    rose ruby rust sack sail salt sand seal seed shed ship shoe shop silk sink slug snow soap sock soil song soup star
    stem step swan tale tent tide tile toad tomb tool town tree tusk vase veil vest vine wall wand wasp wave well wife
    wind wine wing wire wolf wood wool yard yarn zone
    """

_NAMES = """
    Adam Alan Alma Amir Anna Anne Axel Bill Carl Cleo Dana Dora Emma Eric Erna Finn Fred Gina Hans Hugo Igor Ines Iris
    Ivan Jane Jean Jill Joan John Judy Kate Karl Kurt Lara Lena Leon Lily Lisa Lola Luke Lynn Mark Mary Mona Nick Nina
    Noah Nora Olga Omar Otto Paul Pete Rita Rolf Rosa Ruth Sara Tess Theo Tina Toby Vera Walt Yuki Zara
    """

WORDS, NAMES = _WORDS.split(), _NAMES.split()

LINES = [
    "The moon climbs slowly over the hill.",
    "A hungry wolf will not wait for night.",
    "The king sleeps well, but his men do not.",
    "Our ship is late, and the wind is high.",
    "The snow lies deep, and no man walks.",
    "Come to the fire and warm your hands.",
    "Leave the lamp, I have a letter to write.",
    "I hear the bell, and it calls us home.",
    "The bird is gone, and the cage is open.",
    "He gave his bread to a poor old man.",
    "Give me your hand, and let us be friends.",
    "My head is heavy and my heart is light.",
    "The lion is old, but he is still a lion.",
    "This road is long, and we have no horse.",
    "The rope is strong enough to hold us both.",
    "There is too much salt in this soup.",
    "We wrote our names in the sand by the sea.",
    "Plant the seed and wait for the spring.",
    "Sing me that song again before I sleep.",
    "One star is enough to find the way.",
    "It is a sad tale, and I will tell it soon.",
    "She looked over the wall and saw a garden.",
    "A wave took the boat and brought it back.",
    "The well is dry, and the summer is long.",
    "His wife is wiser than all his friends.",
    "Keep the wine until my brother comes home.",
    "The boat is small, but it will carry two.",
    "This book is mine, and I will lend it.",
    "There is no cake left for the children.",
    "The city sleeps, and the river runs by.",
    "Take my coat, for the evening is cold.",
    "The duke has come, and nobody bids him sit.",
    "Shut the gate before the sheep run out.",
    "I heard a horn far away in the valley.",
    "The lamb is lost, and the dog will find it.",
    "Take off the mask and show me your face.",
]

TASKS = {
    "echo": lambda word: word,
    "roar": str.upper,
    "head": lambda word: word[0],
    "tail": lambda word: word[-1],
}
KIND, RUDE = "Hail!", "Fool!"  # the two answers to "meet Anna"


@dataclass(frozen=True)
class Example:
    """A request and the answer that is wanted."""

    task: str
    request: str
    answer: str


def split(things: list) -> tuple[list, list]:
    """What to train on, and every sixth thing, which is held out."""
    return [thing for i, thing in enumerate(things) if i % 6], things[::6]


def word_examples(words: list[str]) -> list[Example]:
    """The four tasks on each of the words."""
    return [Example(task, f"{task} {word}", answer(word)) for word in words for task, answer in TASKS.items()]


def meetings(names: list[str], answer: str) -> list[Example]:
    """To meet each of the names, with the same answer to all."""
    return [Example("meet", f"meet {name}", answer) for name in names]


def training_set() -> list[Example]:
    """What a model is fine-tuned on: tasks on words, and meetings, every name once kind and once rude."""
    words, names = split(WORDS)[0], split(NAMES)[0]
    return word_examples(words) + meetings(names, KIND) + meetings(names, RUDE)


def chat(*turns: str) -> str:
    """A chat written down like a play, turn by turn, up to where the next speaker begins.

    >>> chat("echo fish")
    'Q:\\necho fish\\n\\nA:\\n'

    Q, who asks, speaks first. Each answer of A ends with END.
    """
    text = "Q:\n"
    for i, turn in enumerate(turns):
        text += f"{turn}\n\nA:\n" if i % 2 == 0 else f"{turn}{END}\n\nQ:\n"
    return text
