"""Both estimators as the ``hdbscan_model`` of the real BERTopic, on embeddings that were made before."""

import sys

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import diffclust as dc

pytestmark = pytest.mark.slow  # seconds to import

WORDS = [["wifi", "router", "cable", "slow"], ["invoice", "refund", "card", "paid"], ["paper", "toner", "tray", "jam"]]


@pytest.fixture(scope="module")
def bertopic():
    pytest.importorskip("hdbscan")  # BERTopic 0.17 cannot transform without it, whatever the clusterer is
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "umap", None)  # it compiles for ten seconds, and is not used here
        return pytest.importorskip("bertopic")


@pytest.fixture(scope="module")
def texts():
    """Documents, their vectors, their topics, and the topics that are known: none of the third."""
    rng = np.random.default_rng(0)
    truth = np.arange(120) % 3
    docs = [" ".join(rng.choice(WORDS[topic], 3)) for topic in truth]
    vectors = rng.normal(scale=0.3, size=(120, 5)) + 3 * np.eye(5)[truth]
    return docs, vectors, truth, np.where((np.arange(120) < 30) & (truth < 2), truth, -1)


def make_embedding():
    pytest.importorskip("lightning")
    return dc.cluster.ForestEmbedding(3, n_steps=30, cut="forest", device="cpu", random_state=0)


def make_forest():
    return dc.cluster.SpanningForestClustering(3)


@pytest.mark.parametrize(("make", "with_y"), [(make_forest, False), (make_forest, True), (make_embedding, True)])
def test_topics_are_clusters(bertopic, texts, make, with_y):
    docs, vectors, truth, y = texts
    model = bertopic.BERTopic(
        embedding_model=None,
        umap_model=bertopic.dimensionality.BaseDimensionalityReduction(),
        hdbscan_model=make(),
        calculate_probabilities=False,
    )
    topics, probabilities = model.fit_transform(docs, vectors, y=y if with_y else None)
    assert adjusted_rand_score(truth, topics) > 0.95
    assert probabilities.shape == (120,)
    assert set(topics) == {0, 1, 2}
    for topic in range(3):
        found = {word for word, _ in model.get_topic(topic)}
        assert any(found >= set(words) for words in WORDS)
    new, _ = model.transform(docs[:9], vectors[:9])
    assert list(new) == list(topics[:9])


def test_the_embedding_says_what_it_needs(bertopic, texts):
    reduction = bertopic.dimensionality.BaseDimensionalityReduction()
    model = bertopic.BERTopic(umap_model=reduction, hdbscan_model=make_embedding())
    with pytest.raises(ValueError, match=r"requires y to be passed.*Without any, use SpanningForestClustering"):
        model.fit(*texts[:2])
