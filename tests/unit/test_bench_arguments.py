"""The command line of the measurements, without starting anything."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.arguments import parse
from support.paths import ROOT


@pytest.mark.parametrize("what", ["ablation", "controls"])
def test_a_comparison_runs_euler_on_the_stream_report_by_default(what: str) -> None:
    options = parse("", [what])
    assert (options.stream, options.sampler, options.scoring) == ("report", "euler", "vae")
    assert not options.quick and not options.json and options.seconds is None


def test_a_quick_run_scores_through_the_codec() -> None:
    options = parse(
        "", ["controls", "--quick", "--scoring", "vae", "--stream", "tune", "--sampler", "uni_pc", "--json"]
    )
    assert (options.scoring, options.stream, options.sampler) == ("codec", "tune", "uni_pc")


def test_stream_limits_are_numbers() -> None:
    options = parse("", ["ablation", "--clusters", "3", "--skip", "2", "--seconds", "12.5"])
    assert (options.clusters, options.skip, options.seconds) == (3, 2, 12.5)


@pytest.mark.parametrize(
    "extra", [["--quick"], ["--json"], ["--stream", "tune"], ["--sampler", "euler"], ["--variants", "a"]]
)
def test_other_measurements_refuse_the_options_of_a_comparison(
    extra: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse("", ["report", *extra])
    assert stopped.value.code == 2
    assert f"{extra[0]} belongs to ablation and controls" in capsys.readouterr().err


def test_the_script_refuses_an_unknown_stream_before_it_makes_an_environment() -> None:
    command = [sys.executable, "scripts/bench.py", "ablation", "--stream", "fresh"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "invalid choice: 'fresh'" in done.stderr


def test_a_sweep_is_dense_and_beside_easycache_unless_asked_otherwise() -> None:
    options = parse("", ["gpu_e2e"])
    assert (options.model, options.densities, options.no_easycache, options.profile) == ("5b", [1.0], False, False)
    options = parse("", ["gpu_e2e", "--densities", "0.2", "0.5", "--holds", "0", "0.3", "--no-easycache", "--profile"])
    assert (options.densities, options.holds) == ([0.2, 0.5], [0.0, 0.3])
    assert options.no_easycache and options.profile


def test_a_certificate_needs_many_clusters_and_a_quick_one_few() -> None:
    options = parse("", ["certificate"])
    assert (options.clusters, options.fresh, options.development, options.floors) == (1000, 500, 300, 200)
    assert (options.delta, options.sampler, options.scoring, options.ship) == (0.05, "euler", "vae", False)
    quick = parse("", ["certificate", "--quick", "--fresh", "3"])
    assert quick.clusters < 10 and quick.fresh == 3 and quick.scoring == "codec"
    assert parse("", ["certificate", "--clusters", "40"]).floors == 40


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ablation", "--fresh", "3"], "--fresh belongs to certificate"),
        (["report", "--ship"], "--ship belongs to certificate"),
        (["certificate", "--stream", "tune"], "--stream belongs to ablation and controls"),
        (["certificate", "--delta", "1"], "--delta is a rate between 0 and 1"),
        (["certificate", "--widgets", "[3]"], "--widgets is an object of JSON"),
        (
            ["certificate", "--widgets", '{"region_threshold": 0.3}', "--ship"],
            "only a certificate of the shipped widgets",
        ),
        (["certificate", "--clusters", "0"], "needs at least one cluster"),
        (["certificate", "--clusters", "3", "--floors", "4"], "--floors are taken from the --clusters"),
    ],
)
def test_options_of_a_certificate_that_make_no_sense(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse("", arguments)
    assert stopped.value.code == 2 and said in capsys.readouterr().err
