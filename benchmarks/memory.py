"""What an encoder takes of a machine's memory on a CPU, as one JSON object on standard output:

    python -m benchmarks.memory --method va-half --dtype float32

Bytes beyond those that Python, torch and transformers take. ``loading`` is the most while the model is loaded, pages of
its file among them, which the system takes back when it needs them; ``encoding`` the most after that.
"""

import argparse
import json
import threading

import psutil

from extractors import Encoder
from pipeline.demo import find_demo_model

# Words of a text that fills a batch together with others of its kind.
_WORDS = 60
_EVERY_SECONDS = 0.005


class Peak:
    """The most resident memory of this process while the body runs."""

    def __enter__(self) -> "Peak":
        self.bytes = _resident()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_EVERY_SECONDS):
            self.bytes = max(self.bytes, _resident())


def _resident() -> int:
    return psutil.Process().memory_info().rss


def main() -> None:
    """Loads, encodes some full batches and prints what that took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=find_demo_model(), help="default: the demo's SmolLM2-135M-Instruct")
    parser.add_argument("--method", required=True)
    parser.add_argument("--dtype", required=True, choices=["float32", "bfloat16"])
    given = parser.parse_args()
    before = _resident()
    with Peak() as loading:
        encoder = Encoder(given.model, given.method, dtype=given.dtype, device="cpu")
    with Peak() as encoding:
        encoder.encode([" ".join([f"{number}", *["word"] * _WORDS]) for number in range(100)])
    weights = sum(one.numel() * one.element_size() for one in encoder.backbone.model.parameters())
    figures = {"weights": weights, "loading": loading.bytes - before, "encoding": encoding.bytes - before}
    print(json.dumps({**figures, "token_budget": encoder.token_budget}))


if __name__ == "__main__":
    main()
