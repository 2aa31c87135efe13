"""THE prompts: one template a name, with ``{text}`` where the text goes (twice where it is repeated).

The bytes matter: the read-out token is the last one of the template, and a space or a quote more changes which token
that is.
"""

from extractors.errors import MethodError, nearest

SLOT = "{text}"
# A slot for the text with its words in reverse order.
REVERSED = "{reversed}"
MOST_SLOTS = 2
# A token of no meaning, for token prepending to write to.
PLACEHOLDER = "<PST>"

PROMPTS: dict[str, str] = {
    # The text alone.
    "none": SLOT,
    # Jiang et al. 2023, "Scaling Sentence Embeddings with Large Language Models".
    "prompteol": 'This sentence : "{text}" means in one word:"',
    # Value aggregation (arXiv 2602.01572), with the quotes of PromptEOL, which the paper's print may have lost.
    "futureeol": 'Forecasting the subsequent tokens : "{text}" in one word:"',
    # Zhang et al. 2024, "Simple Techniques for Enhancing Sentence Embeddings in Generative Language Models".
    "pretended-cot": 'After thinking step by step , this sentence : "{text}" means in one word:"',
    "knowledge": (
        "The essence of a sentence is often captured by its main subjects and actions, while descriptive terms provide "
        'additional but less central details. With this in mind , this sentence : "{text}" means in one word:"'
    ),
    # Springer et al. 2024, "Repetition Improves Language Model Embeddings", as printed in PRSR (arXiv 2610.23807).
    "echo": "Rewrite the following paragraph: {text}. The rewritten paragraph: {text}",
    "echo-last": "Sentence: {text} This sentence: {text} means in one word:",
    # Cheng et al. 2025, "Contrastive Prompting": what is to be removed.
    "irrelevant-information": 'The irrelevant information of this sentence : "{text}" means in one word:"',
    # A reading of Lin et al. 2026, "ReverseEOL", whose prompt is not published.
    "reverse-eol": 'This sentence in reverse order : "{reversed}" means in one word:"',
    # A reading of Tang & Yang 2026, "KV-Embedding", as others have rebuilt it.
    "compress": "Context: {text}\nCompress the Context in one word:",
    # Lei et al. 2024, "Meta-Task Prompting Elicits Embeddings from Large Language Models": eight, two a meta-task
    # (classification, sentiment, paraphrase, information extraction).
    "metaeol-1": (
        "In this task, you're presented with a text excerpt. Your task is to categorize the excerpt into a broad "
        "category such as 'Education', 'Technology', 'Health', 'Business', 'Environment', 'Politics', or 'Culture'. "
        "These categories help in organizing content for better accessibility and targeting. For this task, this "
        'sentence : "{text}" should be classified under one general category in one word:"'
    ),
    "metaeol-2": (
        "In this task, you're given a statement and you need to determine whether it's presenting an 'Opinion' or a "
        "'Fact'. This distinction is vital for information verification, educational purposes, and content analysis. "
        'For this task, this sentence : "{text}" discriminates between opinion and fact in one word:"'
    ),
    "metaeol-3": (
        "In this task, you're given a review from an online platform. Your task is to generate a rating for the "
        "product based on the review on a scale of 1-5, where 1 means 'extremely negative' and 5 means 'extremely "
        'positive\'. For this task, this sentence : "{text}" reflects the sentiment in one word:"'
    ),
    "metaeol-4": (
        "In this task, you're reading a personal diary entry. Your task is to identify the predominant emotion "
        "expressed, such as joy, sadness, anger, fear, or love. For this task, this sentence : "
        '"{text}" conveys the emotion in one word:"'
    ),
    "metaeol-5": (
        "In this task, you're presented with two sentences. Your task is to assess whether the sentences convey the "
        "same meaning. Use 'identical', 'similar', 'different', or 'unrelated' to describe the relationship. To "
        'enhance the performance of this task, this sentence : "{text}" means in one word:"'
    ),
    "metaeol-6": (
        "In this task, you're given a sentence and a phrase. Your task is to determine if the phrase can be a "
        "contextual synonym within the given sentence. Options include 'yes', 'no', or 'partially'. To enhance the "
        'performance of this task, this sentence : "{text}" means in one word:"'
    ),
    "metaeol-7": (
        "In this task, you're examining a news article. Your task is to extract the most critical fact from the "
        'article. For this task, this sentence : "{text}" encapsulates the key fact in one word:"'
    ),
    "metaeol-8": (
        "In this task, you're reviewing a scientific abstract. Your task is to identify the main entities (e.g., "
        "proteins, diseases) and their relations (e.g., causes, treats). For this task, this sentence : "
        '"{text}" highlights the primary entity or relation in one word:"'
    ),
}

METAEOL = tuple(f"metaeol-{i}" for i in range(1, 9))


def template_of(prompt: str) -> str:
    """Returns the template that ``prompt`` names, or ``prompt`` itself when it is a template.

    Raises:
        MethodError: neither a known name nor a text with one slot, or two for a text that is repeated.
    """
    if prompt in PROMPTS:
        return PROMPTS[prompt]
    slots = prompt.count(SLOT)
    if REVERSED in prompt and (slots or prompt.count(REVERSED) > 1):
        raise MethodError(f"prompt {prompt!r}: {REVERSED} stands once, and without {SLOT}; make a list of two prompts")
    if REVERSED in prompt or 1 <= slots <= MOST_SLOTS:
        return prompt
    if slots:
        raise MethodError(f"prompt {prompt!r} has {slots} slots {SLOT}; it takes at most {MOST_SLOTS}")
    raise MethodError(
        f"prompt {prompt!r} is neither a known name{nearest(prompt, PROMPTS)} nor a text with the slot {SLOT}. "
        f"Known names: {', '.join(PROMPTS)}. For a prompt of your own write {SLOT} where the text goes"
    )


def is_twofold(template: str) -> bool:
    """Whether the text is repeated."""
    return template.count(SLOT) == MOST_SLOTS


def pieces(template: str) -> list[str]:
    """Returns what stands before, between and after the slots."""
    return template.replace(REVERSED, SLOT).split(SLOT)


def with_placeholder(template: str) -> str:
    """Returns the template with a placeholder before the quoted text, unless it has one already.

    Raises:
        MethodError: no quoted slot to put it before, more than one place, or more than one placeholder.
    """
    if template.count(PLACEHOLDER) == 1:
        return template
    quoted = [f'"{slot}"' for slot in (SLOT, REVERSED) if f'"{slot}"' in template]
    if PLACEHOLDER in template or len(quoted) != 1 or template.count(quoted[0]) != 1:
        raise MethodError(
            f"prompt {template!r}: token prepending needs one place before the text; write {PLACEHOLDER} there, "
            f'or quote the text ("{SLOT}"), before whose opening quote it is put'
        )
    return template.replace(quoted[0], f"{PLACEHOLDER} {quoted[0]}")


def fill_in(template: str, text: str) -> str:
    """Returns the text as the slots take it: reversed, and inside a pair of double quotes its own become single ones.

    A double quote in the text would close the template's quotation early; the papers' code replaces it likewise.
    """
    if REVERSED in template:
        text = " ".join(reversed(text.split()))
    is_quoted = f'"{SLOT}"' in template or f'"{REVERSED}"' in template
    return text.replace('"', "'") if is_quoted else text


def normalized(sentence: str) -> str:
    """Returns a sentence as the SentEval code of the prompt papers (PromptEOL, MetaEOL, CP, TP) prepares it.

    It ends with a full stop unless it ends with one of . ? " ' already; double quotes become single ones; and then a
    final question mark becomes a full stop.
    """
    if sentence and sentence[-1] not in ".?\"'":
        sentence += "."
    sentence = sentence.replace('"', "'")
    return f"{sentence[:-1]}." if sentence.endswith("?") else sentence
