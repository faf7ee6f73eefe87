"""A file below a directory is opened, whatever stands in the way is not."""

import errno
import os

import pytest

from disttest.safe_open import Tree, create_file, open_regular, read_input, read_regular


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "outside/deep").mkdir(parents=True)
    (tmp_path / "outside/deep/rank0.log").write_text("secret")
    root = tmp_path / "results"
    (root / "logs/a/attempt-1").mkdir(parents=True)
    (root / "logs/a/attempt-1/rank0.log").write_text("hello")
    (root / "logs/a/attempt-1/rank1.log").write_text("there")
    (root / "top.log").write_text("top")
    (root / "logs/link").symlink_to(tmp_path / "secret")
    (root / "logs/inside").symlink_to("a/attempt-1/rank0.log")
    (root / "logs/folder").symlink_to(tmp_path / "outside")
    (root / "logs/folder-inside").symlink_to("a")
    (root / "logs/up").symlink_to("..")
    os.mkfifo(root / "logs/pipe")
    (root / "logs/null").symlink_to("/dev/null")
    return Tree(root)


def read(tree, path):
    with os.fdopen(tree.open(path)) as file:
        return file.read()


def test_files_below_are_read(tree):
    assert [read(tree, f"logs/a/attempt-1/rank{rank}.log") for rank in (0, 1, 0)] == [
        "hello",
        "there",
        "hello",
    ]
    assert read(tree, "top.log") == "top"
    assert read(tree, "logs/a/attempt-1/rank1.log") == "there"


@pytest.mark.parametrize(
    "path",
    [
        *(
            "",
            ".",
            "..",
            "/",
            "/etc/passwd",
            "../secret",
            "logs/../../secret",
            "logs/./a/attempt-1/rank0.log",
        ),
        *(
            "logs//a/attempt-1/rank0.log",
            "logs/a/attempt-1/",
            "logs/a",
            "logs/a/attempt-1/none.log",
            "none/rank0.log",
        ),
        *("logs/link", "logs/inside", "logs/folder/deep/rank0.log", "logs/folder-inside/attempt-1/rank0.log"),
        *("logs/up/top.log", "logs/pipe", "logs/null", "top.log/rank0.log"),
        *("a\0b", "a\0/b", "\ud800", "\ud800/b", "x" * 300, "x/" * 5000 + "x"),
    ],
)
def test_anything_else_is_refused(tree, path):
    before = len(os.listdir("/proc/self/fd"))

    with pytest.raises(OSError):
        tree.open(path)

    assert len(os.listdir("/proc/self/fd")) <= before + 1  # the folder that is kept open


def test_after_a_refusal_the_next_is_found(tree):
    with pytest.raises(OSError):
        tree.open("logs/folder/deep/rank0.log")

    assert read(tree, "logs/a/attempt-1/rank0.log") == "hello"


def test_a_folder_that_is_swapped_after_it_was_opened_leads_nowhere(tree, tmp_path):
    assert read(tree, "logs/a/attempt-1/rank0.log") == "hello"
    (tmp_path / "results/logs/a").rename(tmp_path / "results/logs/b")
    (tmp_path / "results/logs/a").symlink_to(tmp_path / "outside")

    assert read(tree, "logs/a/attempt-1/rank1.log") == "there"  # of the folder that was opened
    with pytest.raises(OSError):
        tree.open("logs/a/deep/rank0.log")


def test_descriptors_go_with_the_tree(tree):
    before = len(os.listdir("/proc/self/fd"))
    read(tree, "logs/a/attempt-1/rank0.log")

    tree.close()

    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_a_link_is_named_as_one(tmp_path):
    (tmp_path / "link").symlink_to("/etc/passwd")

    with pytest.raises(OSError, match="it is a symbolic link"):
        open_regular(tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is not a regular file"):
        read_regular(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is not a regular file"):
        open_regular("/dev/null")


@pytest.mark.parametrize("target", ["there", "nowhere"])
def test_nothing_is_made_through_a_link(tmp_path, target):
    (tmp_path / "there").write_text("years of work")
    (tmp_path / "link").symlink_to(tmp_path / target)

    with pytest.raises(FileExistsError) as refused:
        create_file(tmp_path / "link")

    assert refused.value.errno == errno.EEXIST
    assert (tmp_path / "there").read_text() == "years of work"
    assert not (tmp_path / "nowhere").exists()


def test_the_pipe_of_a_process_substitution_is_read_to_its_end():
    reader, writer = os.pipe()
    os.write(writer, b"a plan")
    os.close(writer)

    assert read_input(f"/dev/fd/{reader}") == b"a plan"
    os.close(reader)


def test_an_input_may_be_a_link(tmp_path):
    (tmp_path / "plan").write_bytes(b"a plan")
    (tmp_path / "link").symlink_to("plan")

    assert read_input(tmp_path / "link") == b"a plan"


@pytest.mark.parametrize("name", ["/dev/null", "."])
def test_an_input_is_no_device_and_no_folder(name):
    with pytest.raises(OSError, match=r"neither a regular file nor a pipe|Is a directory"):
        read_input(name)
