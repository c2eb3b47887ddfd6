"""Redaction: possible secrets in an address are never shown, and the surrounding text stays."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.core.redact import redact


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "  m: {path: https://u:p@h.com/a/b.onnx?tok=abc, sha256: 1}",
            "  m: {path: https://***@h.com/a/b.onnx?*******, sha256: 1}",
        ),
        ("x: 'https://h/a?sig=zz'", "x: 'https://h/a?******'"),
        ("x: https://h/a?t=${env.TOKEN}", "x: https://h/a?**${env.TOKEN}"),
        ("x: hf://owner/name/f.onnx@main", "x: hf://owner/name/f.onnx@main"),
        ("x: https://h/plain.onnx", "x: https://h/plain.onnx"),
        ("what? no address", "what? no address"),
        ("path: https://h/my model.onnx?sig=a", "path: https://h/my model.onnx?*****"),
        ("u: https://h/a.onnx # why?", "u: https://h/a.onnx # why?"),
    ],
)
def test_credentials_and_queries_are_masked_and_references_are_kept(text: str, shown: str) -> None:
    assert redact(text) == shown


@given(
    st.sampled_from(["https", "s3", "az"]),
    st.text("abc.:${}", min_size=0, max_size=4),
    st.text("SECRET%=&", min_size=8, max_size=12),
    st.sampled_from(["", ", sha256: 1}", "'", '"', " # a comment", "]"]),
)
def test_query_is_masked_in_any_context(scheme: str, path: str, secret: str, end: str) -> None:
    text = f"  m: {scheme}://host/{path}?{secret}{end}"
    assert secret not in redact(text)
    assert len(redact(text)) == len(text)


def test_long_line_without_an_address_is_fast() -> None:
    """Check this because an EP may write its weights into one line of its log."""
    begin = time.process_time()
    assert redact("x" * 1_000_000) == "x" * 1_000_000
    assert time.process_time() - begin < 2
