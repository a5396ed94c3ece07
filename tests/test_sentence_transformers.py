"""The loss inside sentence-transformers' own trainer, on a tiny model that is made here. Nothing is downloaded."""

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

import diffclust as dc
from tickets import make_model, tickets

pytestmark = pytest.mark.slow  # seconds to import


@pytest.fixture
def tiny_model(tmp_path):
    pytest.importorskip("sentence_transformers")
    return make_model(tmp_path / "bert")


def score(model, texts, topics):
    vectors = model.encode(texts, show_progress_bar=False)
    return adjusted_rand_score(topics, KMeans(3, n_init=3, random_state=0).fit_predict(vectors))


@pytest.mark.parametrize("views", [1, 2])
def test_trainer_learns_topics_from_few_labels(tiny_model, tmp_path, views):
    import sentence_transformers

    datasets = pytest.importorskip("datasets")
    pytest.importorskip("accelerate")
    from diffclust.sentence_transformers import PartialFenchelYoungLoss

    texts, topics = tickets(96)
    labels = np.where(np.arange(96) < 24, topics, -1)
    columns = {f"text{number}": texts for number in range(views)}
    arguments = sentence_transformers.SentenceTransformerTrainingArguments(
        str(tmp_path / "trained"), per_device_train_batch_size=48, max_steps=30, learning_rate=3e-3,
        report_to="none", save_strategy="no", use_cpu=True, disable_tqdm=True, seed=0,
    )  # fmt: skip
    new_texts, new_topics = tickets(60, seed=1)
    before = score(tiny_model, new_texts, new_topics)
    trainer = sentence_transformers.SentenceTransformerTrainer(
        tiny_model,
        arguments,
        train_dataset=datasets.Dataset.from_dict({**columns, "label": labels.tolist()}),
        loss=PartialFenchelYoungLoss(tiny_model, n_clusters=3, seed=0),
    )
    trainer.train()
    assert score(tiny_model, new_texts, new_topics) == 1.0 > before


def test_loss_is_that_of_the_embeddings_and_columns_are_views(tiny_model):
    from diffclust.sentence_transformers import PartialFenchelYoungLoss

    texts, topics = tickets(12)
    labels = torch.from_numpy(np.where(np.arange(12) < 6, topics, -1))
    tiny_model.eval()
    tokens = tiny_model.preprocess(texts)
    embeddings = tiny_model(tokens)["sentence_embedding"]
    loss = PartialFenchelYoungLoss(tiny_model, 3, seed=4)
    assert torch.equal(loss([tokens], labels), dc.nn.PartialFenchelYoungLoss(3, seed=4)(embeddings, labels))
    pairs = dc.Constraints.from_pairs(24, [(row, 12 + row) for row in range(12)])
    alone = PartialFenchelYoungLoss(tiny_model, 3, seed=4)([tokens, tokens], torch.full((12,), -1))
    assert torch.equal(alone, dc.nn.PartialFenchelYoungLoss(3, seed=4)(torch.cat([embeddings, embeddings]), pairs))


def test_the_last_layer_alone_learns_topics_and_the_saved_model_gives_its_vectors(tiny_model, tmp_path):
    from diffclust.sentence_transformers import PartialFenchelYoungLoss
    from diffclust.tables.texts import embed_texts

    texts, topics = tickets(96)
    labels = torch.from_numpy(np.where(np.arange(96) < 24, topics, -1))
    tiny_model.requires_grad_(False)
    last = tiny_model[0].auto_model.encoder.layer[-1].requires_grad_(True)
    before = {name: value.clone() for name, value in tiny_model.state_dict().items()}
    loss = PartialFenchelYoungLoss(tiny_model, 3, seed=0)
    optimizer = torch.optim.AdamW(last.parameters(), lr=3e-3)
    tiny_model.eval()  # without dropout the losses can be compared
    losses = []
    for _ in range(20):
        value = loss([tiny_model.preprocess(texts)], labels)
        optimizer.zero_grad()
        value.backward()
        losses.append(value.item())
        optimizer.step()
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    changed = {name for name, value in tiny_model.state_dict().items() if not torch.equal(value, before[name])}
    number = len(tiny_model[0].auto_model.encoder.layer) - 1
    assert changed
    assert all(f"encoder.layer.{number}." in name for name in changed)
    tiny_model.save(str(tmp_path / "tuned"))
    expected = tiny_model.encode(texts, show_progress_bar=False)
    np.testing.assert_allclose(embed_texts(texts, str(tmp_path / "tuned")), expected, atol=1e-5)
