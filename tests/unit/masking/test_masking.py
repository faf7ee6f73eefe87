"""No value survives, whole or in part, whatever border it lies across and however it is quoted."""

import base64
import itertools
import json
import os
import re
import shlex
import urllib.parse
import xml.sax.saxutils

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape as markup_escape

from disttest.extras.shards.shard_plan import Plan
from disttest.outgoing import FilteredStream
from disttest.plugins.masking.common_words import is_common
from disttest.plugins.masking.masker import Masker

VALUE = 'pä$$"w\\ord 🔑'


def lower_percent(text):
    return re.sub("%..", lambda match: match[0].lower(), text)


def hiding(*values):
    masker = Masker()
    masker.hide(values)
    return masker


def test_nothing_to_hide_leaves_everything_as_it_is():
    data = b"anything"

    assert Masker().data(data) is data
    assert not Masker().active


@pytest.mark.parametrize(
    "form",
    [
        VALUE,
        json.dumps(VALUE),
        json.dumps(VALUE, ensure_ascii=False),
        repr(VALUE),
        ascii(VALUE),
        VALUE.encode("unicode_escape").decode(),
        urllib.parse.quote(VALUE),
        urllib.parse.quote_plus(VALUE),
        "pä$$&quot;w\\ord 🔑",
        repr(VALUE.encode()),
        json.dumps(json.dumps(VALUE)),
        json.dumps(json.dumps(json.dumps(VALUE))),
        json.dumps(json.dumps(VALUE, ensure_ascii=False), ensure_ascii=False),
        json.dumps(repr(VALUE)),
        repr(repr(VALUE)),
        lower_percent(urllib.parse.quote(VALUE)),
        lower_percent(urllib.parse.quote(VALUE, safe="")),
        lower_percent(urllib.parse.quote_plus(VALUE)),
        shlex.quote(VALUE),
        r"pä\$\$\"w\\ord\ 🔑",
        '"pä\\$\\$\\"w\\\\ord 🔑"',
    ],
)
def test_a_value_is_hidden_in_the_forms_that_programs_write(form):
    masked = hiding(VALUE).text(f"<{form}>")

    assert "***" in masked
    assert "ord" not in masked


@pytest.mark.parametrize(
    "quoted", [shlex.quote, "'{}'".format, xml.sax.saxutils.escape, xml.sax.saxutils.quoteattr]
)
def test_a_value_with_quotes_is_hidden_in_shells_and_xml(quoted):
    value = "it's <my> 'pass'word & \"more\""
    form = quoted(value)

    assert "pass" not in hiding(value).text(f"a {form} b")
    assert "pass" not in hiding(value).text("a " + value.replace("'", "'\\''") + " b")
    assert "pass" not in hiding(value).text("a " + markup_escape(value) + " b")


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("value", ["ghs_0123456789abcdef", "~~~???>>>ÿÿÿ~~~???"])
@pytest.mark.parametrize("before", ["", "u", "us", "user:"])
def test_a_value_is_hidden_inside_of_base64(before, value, encode):
    header = encode(f"{before}{value}".encode()).decode()

    masked = hiding(value).text(f"Authorization: Basic {header}")

    assert "***" in masked
    assert len(masked) < len("Authorization: Basic ") + len("***") + 12


LONG = "".join(f"{number:x}~?>" for number in range(4_000, 4_080))


@pytest.mark.parametrize("width", [64, 76])
@pytest.mark.parametrize("value", [LONG, "ghs_0123456789abcdef"])
@pytest.mark.parametrize("before", range(0, 60, 13))
@pytest.mark.parametrize(
    "line", ["{}\n", "{}\\n", "{}\\u000a", "{}%0A", "E   [rank 0] {}\n", "\x1b[32m{}\x1b[0m\n", "log/0/{}\n"]
)
def test_a_value_is_hidden_in_the_lines_of_wrapped_base64(width, value, before, line):
    encoded = base64.b64encode(f"{'.' * before}{value}{'.' * 60}".encode()).decode()
    lines = [encoded[at : at + width] for at in range(0, len(encoded), width)]

    masked = hiding(value).text("".join(map(line.format, lines)))

    assert "***" in masked
    parts = {encoded[at : at + 8] for at in range(before * 8 // 6 + 2, (before + len(value)) * 8 // 6 - 10)}
    assert [] == [part for part in parts if part in masked]


def test_wrapped_base64_is_hidden_in_a_stream_however_it_is_cut():
    encoded = base64.encodebytes(LONG.encode())
    stream = FilteredStream(hiding(LONG))

    shown = (
        b"".join(stream.feed(encoded[at : at + 11]) for at in range(0, len(encoded), 11)) + stream.finish()
    )

    assert len(shown) < 12 * encoded.count(b"\n")
    assert [] == [at for at in range(len(encoded) - 8) if encoded[at : at + 8] in shown]


def test_text_that_is_no_part_of_a_value_in_base64_stays():
    text = f"{base64.b64encode(b'x' * 300).decode()} test_all_reduce_of_a_wide_world torch/distributed/distributed_c10d"

    assert text == hiding(LONG).text(text)


def test_the_lines_of_a_value_are_hidden_one_by_one():
    key = "-----BEGIN KEY-----\n  MIIEvQIBADANBg\n  kqhkiG9w0BAQ\n-----END KEY-----"
    masked = hiding(key).text("[rank0] MIIEvQIBADANBg\n[rank1] kqhkiG9w0BAQ\n")

    assert "[rank0] ***\n[rank1] ***\n" == masked


def test_values_that_overlap_leave_nothing_between_them():
    assert "x***y" == hiding("abcd", "cdef").text("xabcdefy")
    assert "***" == hiding("abab").text("ababab")


def test_a_short_value_is_told_and_not_hidden():
    masker = Masker()

    assert ("abc",) == masker.hide(["abc", "long enough"])
    assert "abc ***" == masker.text("abc long enough")


def test_text_that_is_not_utf8_and_lone_surrogates_come_through():
    masker = hiding("secret")

    assert b"\xff*** \xfe" == masker.data(b"\xffsecret \xfe")
    assert "\udcff***" == masker.text("\udcffsecret")


def test_what_is_cut_at_a_border_is_hidden_too():
    masker = hiding("secret-value")

    assert b"a ***" == masker.data(b"a secret-v", cut_end=True)
    assert b"*** b" == masker.data(b"et-value b", cut_start=True)
    assert b"a secret-v" == masker.data(b"a secret-v")


def test_all_strings_of_a_tree_are_hidden_in():
    tree = {"a secret": ["secret", ("secret", 1), {"b": None}]}

    assert {"a ***": ["***", ("***", 1), {"b": None}]} == hiding("secret").tree(tree)


@given(
    pieces=st.lists(
        st.sampled_from(["secret", "sec", "ret", "cre", "x", " ", "\n", "sé🔑t", "sé", "tse"]), max_size=12
    ),
    cuts=st.lists(st.integers(0, 80), max_size=8),
)
def test_a_stream_in_pieces_says_what_the_whole_says(pieces, cuts):
    masker = hiding("secret", "sé🔑t", "retse")
    whole = "".join(pieces).encode()
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    stream = FilteredStream(masker)

    shown = b"".join(stream.feed(whole[a:b]) for a, b in itertools.pairwise(places))
    held = stream._held
    assert shown + masker.data(held) == masker.data(whole)
    assert b"secret" not in shown + stream.finish()


def test_a_stream_holds_back_no_more_than_what_may_become_a_value():
    stream = FilteredStream(hiding("secret"))

    assert b"dots ...." == stream.feed(b"dots ....")
    assert b" " == stream.feed(b" secr")
    assert b"***." == stream.feed(b"et.")


def test_a_stream_that_ends_inside_of_a_value_shows_no_part_of_it():
    stream = FilteredStream(hiding("secret"))

    assert b"a " == stream.feed(b"a secr")
    assert b"***" == stream.finish()


def test_a_stream_hides_what_it_asks_to_mask():
    stream = FilteredStream(Masker())

    assert b"dots ..\n" == stream.feed(b"dots ..\n::add-ma")
    assert b"" == stream.feed(b"sk::hunter")
    assert b"::add-mask::***\nthen *** hunter\n" == stream.feed(b"22\nthen hunter22 hunter\n")


@pytest.mark.slow("a long stream")
def test_a_stream_of_nothing_but_beginnings_is_not_held_for_ever():
    stream = FilteredStream(hiding("aaaa"))
    shown = b"".join(stream.feed(b"a" * 4096) for _ in range(40))

    assert b"a" not in shown
    assert len(stream._held) <= 1 << 16


def test_github_s_command_teaches_values_in_its_own_escapes():
    masker = Masker()
    masker.learn(b"noise\n  ::add-mask::top%25secret%0Asecond line\r\n::add-mask::abc\n")

    assert "*** and *** and abc" == masker.text("top%secret and second line and abc")


def test_processes_share_what_they_learn_through_the_ledger():
    first, second = hiding("from the start"), Masker()
    first.share()
    second.share(os.dup(first.shared))

    assert "***" == second.text("from the start")
    second.hide(["learned later"])
    assert "***" == first.text("learned later")
    assert not os.get_inheritable(first.shared)


def test_a_ledger_can_be_opened_anew():
    masker = hiding("from the start")
    masker.share()
    masker.share()
    other = Masker()
    other.share(os.dup(masker.shared))
    other.hide(["learned later"])

    assert "*** ***" == masker.text("from the start learned later")


def test_a_test_may_replace_the_functions_that_read_the_ledger(monkeypatch):
    masker, other = Masker(), Masker()
    masker.share()
    other.share(os.dup(masker.shared))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", lambda _: os.stat("/"))
        patch.setattr(os, "pread", lambda *_: b"")
        other.hide(["hunter2"])
        masked = masker.data(b"hunter2")

    assert b"***" == masked


def test_a_ledger_that_a_test_has_closed_or_replaced_is_left_alone(tmp_path):
    masker = hiding("known value")
    masker.share()
    fd = masker.shared
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    os.dup2(other, fd)

    masker.hide(["another value"])

    assert "*** ***" == masker.text("known value another value")
    assert b"" == (tmp_path / "other").read_bytes()
    os.close(fd)
    os.close(other)
    assert "***" == masker.text("known value")


def test_a_part_of_a_word_of_the_formats_is_not_hidden():
    """A journal without the word `failed` has no failures."""
    masker = Masker()

    assert ("fail", "abc") == masker.hide(["fail", "abc", "swordfish\n"])
    assert "failed with ***" == masker.text("failed with swordfish")


def test_numbers_of_json_stay():
    data = json.dumps({"at_s": 17959.5, "said": 'the "17959" of\n17959', "17959": [17959]}).encode()

    assert {"at_s": 17959.5, "said": 'the "***" of\n***', "***": [17959]} == json.loads(
        hiding("17959").json(data)
    )
    assert data is hiding("swordfish").json(data)


def test_a_line_that_was_cut_hides_nothing_less():
    cut = b'{"message":"abc\n{"message":"a swordfish"}\n{"text":"a swordfish, and'

    assert b'{"message":"abc\n{"message":"a ***"}\n{"text":"a ***, and' == hiding("swordfish").json(cut)


def test_words_of_plans_are_known():
    _, parts = msgspec.json.schema_components([Plan])
    fields = {name for part in parts.values() for name in part.get("properties", ())}

    assert {"plan_id", "grant"} <= fields
    assert [] == [name for name in fields if len(name) > 3 and not is_common(name)]
