"""Prompts to measure routing on: 800 short ones of five tasks, filled into our templates with a fixed seed.

The paper measures expert-path diversity on 800 prompts of different tasks, which it does not publish. With one set that
everybody has, values of Psi can be compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable

PER_TASK = 160
SEED = 0

NAMES = ("Ada", "Ben", "Chidi", "Dana", "Elif", "Farid", "Grace", "Hugo", "Ines", "Jun", "Kofi", "Lena", "Maya", "Noor")
THINGS = ("apples", "books", "coins", "pencils", "stamps", "marbles", "tickets", "shells", "buttons", "candles")
PLACES = ("the library", "the market", "the station", "a museum", "the harbour", "a small bakery", "the airport")
COUNTRIES = (
    "France", "Japan", "Brazil", "Kenya", "Canada", "Egypt", "India", "Norway", "Peru", "Turkey", "Vietnam", "Greece",
    "Poland", "Chile", "Morocco", "Finland", "Portugal", "Mexico", "Austria", "Ireland",
)  # fmt: skip
SUBJECTS = (
    "photosynthesis", "gravity", "inflation", "the water cycle", "a vaccine", "plate tectonics", "electricity", "DNA",
    "an election", "the Roman Empire", "a black hole", "antibiotics", "the printing press", "a glacier",
    "the ozone hole", "supply and demand", "the immune system", "a volcano", "natural selection", "the periodic table",
)  # fmt: skip
FUNCTIONS = (
    "reverses a string", "sums the digits of a number", "returns the largest item of a list", "counts the vowels",
    "checks whether a number is prime", "merges two sorted lists", "removes duplicates from a list",
    "converts Celsius to Fahrenheit", "finds the second smallest number", "splits a sentence into words",
    "flattens a nested list", "checks for balanced brackets", "computes a factorial", "rotates a list by k places",
)  # fmt: skip
LANGUAGES = ("Python", "JavaScript", "C", "Rust", "Go", "Java")
MOODS = ("tired", "excited", "worried", "curious", "late", "hungry", "proud", "confused")
TOPICS = ("the weather", "a new job", "moving house", "learning the piano", "a long train ride", "cooking for friends")
SIZES = ("taller", "older", "faster", "heavier", "richer")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
ANIMALS = ("cats", "birds", "whales", "spiders", "horses", "frogs", "bees", "owls")
TRAITS = ("curious", "quiet", "fast", "green", "patient", "noisy", "small", "brave")

Choose = random.Random


def _math(r: Choose) -> str:
    a, b, c = r.randint(3, 98), r.randint(2, 45), r.randint(2, 12)
    name, other = r.sample(NAMES, 2)
    return r.choice((
        f"What is {a} + {b} * {c}?",
        f"{name} has {a} {r.choice(THINGS)} and gives {min(a - 1, b)} of them to {other}. How many are left?",
        f"A train travels {a} km in {c} hours. What is its average speed?",
        f"Solve for x: {c}x + {b} = {a + c * b}.",
        f"What is {c * 5}% of {a * 10}?",
        f"A rectangle is {a} cm long and {b} cm wide. What is its area?",
        f"{name} saves {b} euros a week. How much is that after {c} weeks?",
        f"What is the next number: {c}, {c + b}, {c + 2 * b}, {c + 3 * b}?",
    ))  # fmt: skip


def _code(r: Choose) -> str:
    language, task, n = r.choice(LANGUAGES), r.choice(FUNCTIONS), r.randint(2, 60)
    return r.choice((
        f"Write a {language} function that {task}.",
        f"Explain what this prints: print([i * {n % 9 + 2} for i in range({n % 7 + 2})])",
        f"def solve(n):\n    total = {n}\n    for i in range(n):\n        total += i\n    return",
        f"Find the bug: for (int i = 0; i <= {n}; i++) sum += a[i]; // a has {n} items",
        f"// {language}: a function that {task}\n",
        f"How do I read a file line by line in {language}, at most {n} lines?",
        f"SELECT name, COUNT(*) FROM orders WHERE amount > {n} GROUP BY",
    ))  # fmt: skip


def _knowledge(r: Choose) -> str:
    country, subject, other = r.choice(COUNTRIES), r.choice(SUBJECTS), r.choice(SUBJECTS)
    return r.choice((
        f"What is the capital of {country}?",
        f"In one sentence, what is {subject}?",
        f"Which countries border {country}?",
        f"Why is {subject} important for people in {country}?",
        f"Name three facts about {subject}.",
        f"What do {subject} and {other} have in common?",
        f"The official languages of {country} are",
        f"Who first described {subject}, and when?",
    ))  # fmt: skip


def _dialogue(r: Choose) -> str:
    one, two = r.sample(NAMES, 2)
    mood, topic, place = r.choice(MOODS), r.choice(TOPICS), r.choice(PLACES)
    return r.choice((
        f"{one}: You look {mood} today.\n{two}:",
        f"{one} and {two} meet at {place} and talk about {topic}. {one} says:",
        f"{two}: Can you tell me the way to {place}?\n{one}: Of course,",
        f"Write a short reply to a friend who is {mood} about {topic}.",
        f"{one}: I was thinking about {topic}.\n{two}: Really? Why?\n{one}:",
        f"How would you politely tell {one} that you are {mood} and want to leave {place}?",
    ))  # fmt: skip


def _reasoning(r: Choose) -> str:
    one, two, three = r.sample(NAMES, 3)
    size, day, n = r.choice(SIZES), r.choice(DAYS), r.randint(2, 30)
    animal, (trait, other) = r.choice(ANIMALS), r.sample(TRAITS, 2)
    return r.choice((
        f"{one} is {size} than {two}, and {two} is {size} than {three}. Who is the least {size[:-2]}?",
        f"Today is {day}. Which day is it in {n} days?",
        f"All {animal} are {trait}. Nothing {trait} is {other}. Are {animal} {other}?",
        f"If it rains, {one} stays at home. {one} is at {r.choice(PLACES)}. Is it raining?",
        f"{one} sits left of {two}. {three} sits right of {two}. Who sits in the middle?",
        f"{one} turns left, then right, then right, and walks {n} steps. Which way does {one} face?",
        f"A box holds a key or {n} {r.choice(THINGS)}, not both. It holds no key. What is in the box?",
    ))  # fmt: skip


TASKS: dict[str, Callable[[Choose], str]] = {
    "math": _math,
    "code": _code,
    "knowledge": _knowledge,
    "dialogue": _dialogue,
    "reasoning": _reasoning,
}


def prompt_set(per_task: int = PER_TASK) -> dict[str, list[str]]:
    """Return the prompts of each task by its name: always the same ones, and a smaller set is part of a larger one."""
    by_task = {}
    for task, write in TASKS.items():
        choose = random.Random(f"{SEED} {task}")
        prompts: dict[str, None] = {}
        while len(prompts) < per_task:
            prompts[write(choose)] = None
        by_task[task] = list(prompts)
    return by_task
