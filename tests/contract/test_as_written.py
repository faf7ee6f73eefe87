"""pytest imports our modules as Python does: with byte code from the installation, and without a word about it."""

from __future__ import annotations

from pathlib import Path

from lab import Lab, start_program

TEST = """
    import sys
    from _pytest.assertion.rewrite import AssertionRewritingHook

    def test_loaders():
        ours = {name: module.__loader__ for name, module in sys.modules.items() if name.startswith("disttest.")}
        assert len(ours) > 100
        assert not [name for name, loader in ours.items() if isinstance(loader, AssertionRewritingHook)]
        assert isinstance(__loader__, AssertionRewritingHook)
"""


def test_no_module_of_ours_is_rewritten(tmp_path: Path) -> None:
    ended = Lab(tmp_path).write(test_x=TEST).pytest("test_x.py", "-W", "error")

    assert ended.exit_code == 0, ended.output


def test_a_process_that_has_them_already_is_not_warned(tmp_path: Path) -> None:
    lab = Lab(tmp_path).write(test_x=TEST)
    program = "import sys, pytest, disttest.plugin; sys.exit(pytest.main(sys.argv[1:]))"
    argv = [lab.python, "-c", program, "-W", "error", "-p", "disttest.plugin", "test_x.py"]

    process = start_program(argv, tmp_path, lab.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})

    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
