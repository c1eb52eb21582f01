import pytest

from ettsweep.errors import InputError
from ettsweep.trainer.tasks.text import text_data
from ettsweep.trainer.tasks.text.pydoc import documents, make_corpus, pydoc_corpus, without_repeated_paragraphs

PASSAGES = {
    f"topic-{k}": "\n\n".join(
        [f"Title {k}. A sentence!", "The same paragraph in all of them.", f'"Quoted {k}?" So it is.']
    )
    for k in range(10)
}


def test_no_topic_quotes_an_earlier_one() -> None:
    first, second, *_ = without_repeated_paragraphs(PASSAGES)
    assert "The same paragraph" in first
    assert second == 'Title 1. A sentence!\n\n"Quoted 1?" So it is.'
    topics = [set(text.split("\n\n")) for text in documents()]
    assert len(set.union(*topics)) == sum(map(len, topics))


def test_who_changes_how_text_becomes_tokens_makes_other_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this digest changes, runs would compare what was trained on other tokens: raise PYDOC_RULES with it."""
    corpus, before = make_corpus(without_repeated_paragraphs(PASSAGES), 280), text_data.pydoc_digest()
    assert (text_data.PYDOC_RULES, corpus.digest) == (1, "8800c1b9c24c")
    monkeypatch.setattr(text_data, "PYDOC_RULES", 2)
    assert text_data.pydoc_digest() != before


def test_vocabulary_beyond_the_text_is_refused_with_the_most_possible() -> None:
    with pytest.raises(
        InputError, match=r"more than Python's documentation has tokens for: --set model.vocabulary=(\d+)"
    ) as e:
        pydoc_corpus(50265)
    int_result = int(str(e.value).rsplit("=", 1)[1].split()[0])
    assert make_corpus(documents(), int_result).n_vocab == int_result
