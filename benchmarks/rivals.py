"""What people would use instead, with the same model, the same texts and the same number format."""

from collections.abc import Sequence

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import AutoModel, AutoTokenizer

BATCH_SIZES = (8, 32)


def sentence_transformer(
    model: str, dtype: str, pooling: str, device: torch.device, chat: bool = False
) -> SentenceTransformer:
    """Returns sentence-transformers around the model.

    Args:
        pooling: mean or lasttoken.
        chat: leave it as it comes, which for a model with a chat template puts every text into a conversation; its
            vectors are then not those of the text alone.
    """
    options = {"dtype": getattr(torch, dtype), "attn_implementation": "sdpa"}
    plain = {
        "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
        "module_output_name": "token_embeddings",
    }
    body = Transformer(model, model_kwargs=options, max_seq_length=512, **({} if chat else plain))
    head = Pooling(body.get_embedding_dimension(), pooling_mode=pooling)
    loaded = SentenceTransformer(modules=[body, head], device=str(device))
    return loaded.eval()


def library_encodes(library: SentenceTransformer, texts: Sequence[str], batch_size: int) -> np.ndarray:
    """Returns float32 [N, D] by sentence-transformers."""
    return library.encode(list(texts), batch_size=batch_size, show_progress_bar=False)


class PlainTransformers:
    """The loop that a model card shows: batches in the texts' order, padded, with an attention mask."""

    def __init__(self, model: str, dtype: str, pooling: str, device: torch.device) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(model, padding_side="right")
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token
        self.model = AutoModel.from_pretrained(model, dtype=getattr(torch, dtype)).eval().to(device)
        self.pooling, self.device = pooling, device

    @torch.inference_mode()
    def encode(self, texts: Sequence[str], batch_size: int) -> np.ndarray:
        """Returns float32 [N, D]."""
        vectors = []
        for begin in range(0, len(texts), batch_size):
            batch = texts[begin : begin + batch_size]
            options = {"padding": True, "truncation": True, "max_length": 512, "return_tensors": "pt"}
            inputs = self.tokenizer(list(batch), **options).to(self.device)
            state_BND = self.model(**inputs).last_hidden_state.float()
            mask_BN = inputs["attention_mask"]
            if self.pooling == "mean":
                vectors.append((state_BND * mask_BN[:, :, None]).sum(1) / mask_BN.sum(1, keepdim=True))
            else:
                vectors.append(state_BND[torch.arange(len(batch)), mask_BN.sum(1) - 1])
        return torch.cat(vectors).cpu().numpy()
