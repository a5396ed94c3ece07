"""Texts of three topics, and a tiny sentence-transformers model that knows their words. Nothing is downloaded."""

import numpy as np

WORDS = {"wifi": "router signal network cable", "money": "invoice refund card paid", "paper": "toner tray jam printer"}
FILLERS = "please help the is not working since yesterday"


def make_model(folder):
    """A BERT of two layers over the words of the texts; its files are in the folder."""
    import sentence_transformers
    import torch
    import transformers
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *" ".join([*WORDS.values(), FILLERS]).split()]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=len(vocabulary), max_position_embeddings=16, **sizes)
    transformers.BertModel(config).save_pretrained(folder)
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    body = Transformer(str(folder), max_seq_length=9)
    return sentence_transformers.SentenceTransformer(modules=[body, Pooling(16)], device="cpu")


def tickets(n, seed=0, n_fillers=5):
    """Texts of two words of one of three topics among some others, and their topics."""
    rng = np.random.default_rng(seed)
    topics = np.arange(n) % 3
    words = [rng.choice(list(WORDS.values())[topic].split(), 2) for topic in topics]
    return [" ".join([*two, *rng.choice(FILLERS.split(), n_fillers)]) for two in words], topics
