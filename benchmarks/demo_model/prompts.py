"""Questions that the dense model is asked when chat.py makes conversations for the distillation.

The training and the evaluation questions are disjoint: no evaluation question, and no evaluation topic, occurs in
training. Order and number are part of the recipe: chat.py draws from them with a fixed seed.
"""

import random

TOPICS = [
    topic.strip()
    for topic in """
the water cycle; black holes; the French Revolution; photosynthesis; supply and demand; sorting algorithms;
Shakespeare; vaccines; climate change; machine learning; the Roman Empire; plate tectonics; jazz music; baking
bread; the stock market; electric cars; the human heart; chess; poetry; the internet; recycling; the Great Wall of
China; volcanoes; democracy; meditation; object-oriented programming; the moon landing; bees; antibiotics;
inflation; gravity; whales; coffee; mountains; painting; robots; libraries; rivers; sleep; bicycles; dinosaurs; the
printing press; solar panels; rainbows; the immune system; haiku; origami; gardening; prime numbers; probability;
databases; version control; recursion; networks; encryption; open-source software; unit tests; the periodic table;
atoms; electricity; magnets; light; sound; earthquakes; glaciers; deserts; rainforests; coral reefs; migration of
birds; wolves; cats; horses; penguins; trees; mushrooms; soil; cheese; tea; chocolate; soup; pasta; running;
swimming; football; yoga; the violin; opera; photography; cinema; museums; cathedrals; bridges; railways; ships;
aeroplanes; satellites; Mars; the sun; calendars; clocks; maps; money; banks; taxes; insurance; contracts;
elections; courts; schools; newspapers; holidays; friendship; honesty; curiosity; teamwork; leadership; public
speaking; interviews
""".replace("\n", " ").split(";")
]

TEMPLATES = (
    "Explain {} in simple terms.",
    "Write a short story about {}.",
    "Give me five facts about {}.",
    "What is the history of {}?",
    "Why does {} matter?",
    "Write a short poem about {}.",
    "How would you teach {} to a child?",
    "List the pros and cons of {}.",
    "What are common mistakes people make about {}?",
    "Describe {} in one sentence.",
    "Can you tell me about {}?",
    "What should a beginner know about {}?",
)

QUESTIONS = """What is the capital of France?
What is the capital of Japan?
What is the capital of Italy?
What is the capital of Germany?
Write a Python function that adds two numbers.
Write a Python function to check if a number is prime.
Write a Python function to reverse a string.
Write a Python function that returns the largest item of a list.
Write a Python function that computes the factorial of n.
Write a Python program that prints the first ten squares.
What is 12 times 8?
What is 7 + 5?
What is 100 minus 37?
Translate "good morning" into Spanish.
Translate "thank you" into French.
Who wrote Hamlet?
Who painted the Mona Lisa?
Name three primary colours.
How many days are in a leap year?
How many continents are there?
Write an email asking for a day off.
Write a polite reply to a customer who complains about a late parcel.
Summarise the benefits of exercise.
What is the largest planet?
What is the tallest mountain in the world?
Give me a recipe for pancakes.
What is the boiling point of water?
Hello! How are you?
Hi
Who are you?
What can you do?
Tell me a joke.
What should I pack for a trip to the mountains?
How do I learn to play the guitar?
Write a haiku about autumn.
What is the difference between a list and a tuple in Python?
What is Kubernetes?
What is a mixture of experts model?
How does a neural network learn?
What is an API?""".splitlines()

EVALUATION_TOPICS = ("owls", "tides", "compilers", "castles", "the guitar", "vitamins", "trade", "comets")
EVALUATION_QUESTIONS = """What is the capital of Spain?
Write a Python function that counts the vowels in a string.
What is 9 times 6?
Who wrote Pride and Prejudice?
How many hours are in a week?
Translate "good night" into Italian.
Write an email inviting a colleague to lunch.
What is the smallest prime number?
Give me a recipe for an omelette.
Write a haiku about the sea.
Why is the sky blue?
How do I stay focused while I work?""".splitlines()


def training_prompts(count: int) -> list[str]:
    """The first `count`, at most 900, of the training questions: QUESTIONS three times among topics x templates."""
    combinations = [template.format(topic) for topic in TOPICS for template in TEMPLATES]
    random.Random(0).shuffle(combinations)
    prompts = (QUESTIONS * 3 + combinations)[:900]
    random.Random(1).shuffle(prompts)
    return prompts[:count]


def evaluation_prompts() -> list[str]:
    """The held-out questions, in a fixed order."""
    return [*EVALUATION_QUESTIONS, *(f"Explain {topic} in simple terms." for topic in EVALUATION_TOPICS)]
