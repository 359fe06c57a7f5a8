"""Where reports go."""

from gradfix.report.terminal import Terminal


def test_in_a_notebooks_kernel_a_report_is_one_stream(monkeypatch, capsys):
    """There rich would send every line as a display of its own, with its own margin."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    terminal = Terminal()
    terminal.err.print("one line")
    assert not terminal.err.is_jupyter
    assert capsys.readouterr().err == "one line\n"
