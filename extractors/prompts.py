"""THE prompts: one template a name, with ``{text}`` where the text goes.

The bytes matter: the read-out token is the last one of the template, and a space or a quote more changes which token
that is.
"""

from extractors.errors import MethodError, nearest

SLOT = "{text}"

PROMPTS: dict[str, str] = {
    # The text alone.
    "none": SLOT,
    # Jiang et al. 2023, "Scaling Sentence Embeddings with Large Language Models".
    "prompteol": 'This sentence : "{text}" means in one word:"',
    # Value aggregation (arXiv 2602.01572), with the quotes of PromptEOL, which the paper's print may have lost.
    "futureeol": 'Forecasting the subsequent tokens : "{text}" in one word:"',
}


def template_of(prompt: str) -> str:
    """Returns the template that ``prompt`` names, or ``prompt`` itself when it is a template.

    Raises:
        MethodError: neither a known name nor a text with exactly one slot.
    """
    if prompt in PROMPTS:
        return PROMPTS[prompt]
    if prompt.count(SLOT) == 1:
        return prompt
    if SLOT in prompt:
        raise MethodError(f"prompt {prompt!r} has {prompt.count(SLOT)} slots {SLOT}; it takes exactly one")
    names = ", ".join(PROMPTS)
    raise MethodError(
        f"prompt {prompt!r} is neither a known name{nearest(prompt, PROMPTS)} nor a text with the slot {SLOT}. "
        f"Known names: {names}. For a prompt of your own write {SLOT} where the text goes"
    )


def split_template(template: str) -> tuple[str, str]:
    """Returns what stands before and after the slot."""
    before, after = template.split(SLOT)
    return before, after


def fill_in(template: str, text: str) -> str:
    """Returns the text as the slot takes it: inside a pair of double quotes, its own become single ones.

    A double quote in the text would close the template's quotation early; the papers' code replaces it likewise.
    """
    before, after = split_template(template)
    return text.replace('"', "'") if before.endswith('"') and after.startswith('"') else text
