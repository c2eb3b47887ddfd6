"""Strategies for locks with all of their possible contents."""

from __future__ import annotations

from hypothesis import strategies as st

from epbuild.toolchain.lock import Lock, LockedEnvironment, LockedModel, LockedToolchain, Package

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True)
digests = st.sampled_from([f"{number:02x}" * 32 for number in range(256)])
versions = st.from_regex(r"[0-9]+(\.[0-9]+){0,2}(rc1|\.post1|\+cu12)?", fullmatch=True)
files = st.lists(digests, min_size=1, max_size=3, unique=True).map(lambda found: tuple(sorted(found)))
distributions = st.from_regex(r"[a-z0-9]+(-[a-z0-9]+)?", fullmatch=True)
made = st.builds(Package, distributions, versions, files)
installed = st.builds(Package, distributions, versions, st.just(()))


def environments(packages: st.SearchStrategy[Package]) -> st.SearchStrategy[LockedEnvironment]:
    several = st.lists(packages, min_size=1, max_size=4, unique_by=lambda item: item.name)
    return st.builds(
        LockedEnvironment, st.sampled_from(["cpython-3.11", "pypy-3.10"]), several.map(lambda found: tuple(sorted(found)))
    )


platforms = st.dictionaries(
    st.sampled_from(["linux-x86_64", "windows-arm64", "macos-arm64"]), environments(made) | environments(installed), max_size=3
)
requirements = st.lists(
    st.sampled_from(["a==1", "b[x, y]>=1,<2", "c; sys_platform == 'win32'", "python"]), min_size=1, max_size=3, unique=True
)
toolchains = st.builds(LockedToolchain, requirements.map(lambda found: tuple(sorted(found))), platforms)
locations = st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable() or "\n" in text)
models = st.builds(LockedModel, digests, st.dictionaries(locations, digests, max_size=3))
catalogs = st.dictionaries(st.from_regex(r"[A-Za-z]+(/[a-z-]+)?", fullmatch=True), st.sampled_from(["1", f"2 sha256:{'a' * 64}"]))
releases = st.lists(made, max_size=3, unique_by=lambda item: item.requirement).map(lambda found: tuple(sorted(found)))
locks = st.builds(
    Lock, names, st.dictionaries(names, toolchains, max_size=3), st.dictionaries(names, models, max_size=3), catalogs, releases
)
