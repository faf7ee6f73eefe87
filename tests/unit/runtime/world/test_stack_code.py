"""The user's line below the innermost frame that is theirs."""

from disttest.runtime.world.stacks import with_code


def frame(file, line, function):
    return f'  File "{file}", line {line} in {function}'


def test_each_thread_shows_the_users_innermost_line(tmp_path):
    mine = tmp_path / "test_mine.py"
    mine.write_text("def helper():\n    dist.barrier()\n\ndef test_it():\n    helper()\n")
    library = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    main = [
        "Current thread (most recent call first):",
        frame(library, 9, "barrier"),
        frame(mine, 2, "helper"),
    ]
    other = ["Thread (most recent call first):", frame(library, 3, "loop")]
    stacks = "\n".join([*other, "", *main, frame(mine, 5, "test_it")])

    assert with_code(stacks).splitlines() == [
        *other, "", *main, "    dist.barrier()", frame(mine, 5, "test_it"),
    ]  # fmt: skip


def test_what_cannot_be_read_is_left_as_it_is(tmp_path):
    for file in ("<string>", tmp_path, "/dev/zero", tmp_path / "gone.py", "a\0b"):
        stacks = "\n".join(["Current thread (most recent call first):", frame(file, 1, "f")])
        assert stacks == with_code(stacks)
    assert "Process state: stopped" == with_code("Process state: stopped")


def test_lines_that_are_not_there_and_endless_ones(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(f"\nx = '{'x' * 10_000}'\n")
    assert with_code(frame(mine, 99, "f")) == frame(mine, 99, "f")
    assert 204 == len(with_code(frame(mine, 2, "f")).splitlines()[1])
