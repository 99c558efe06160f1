"""What every implementation of a seam must do, as test classes that its tests inherit."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tuner_daemon.interfaces import Builder, Effort, Runner
from tuner_daemon.records.expression import Expression
from tuner_daemon.records.kernel import (
    Argument,
    Kernel,
    Launch,
    Parameter,
    ProblemVariable,
    Reference,
    Source,
    Value,
    Work,
)
from tuner_daemon.records.measurement import Artifact, Failure, Outcome, Timing
from tuner_daemon.records.space import ParamSpace
from tuner_daemon.records.spec import DeviceRequest, KernelSpec
from tuner_daemon.records.task import Task

BEHAVIOURS: dict[str, Outcome] = {
    "right": Outcome.OK,
    "also_right": Outcome.OK,
    "loud": Outcome.OK,
    "slightly_wrong": Outcome.WRONG_RESULT,
    "one_unwritten": Outcome.WRONG_RESULT,
    "all_zero": Outcome.WRONG_RESULT,
    "wrong_later": Outcome.WRONG_RESULT,
    "past_the_end": Outcome.WRONG_RESULT,
    "before_the_start": Outcome.WRONG_RESULT,
    "modifies_input": Outcome.WRONG_RESULT,
    "crash": Outcome.CRASHED,
    "hang": Outcome.TIMED_OUT,
    "no_build": Outcome.BUILD_FAILED,
}
"""A candidate's behaviour, and what a Builder and a Runner must make of it."""

FAILING = [name for name, outcome in BEHAVIOURS.items() if outcome not in (Outcome.OK, Outcome.BUILD_FAILED)]

BODY = """
#if defined(BEHAVIOUR_SLIGHTLY_WRONG)
#define VALUE(i) (2.0f * x[i] + 1.001f)
#elif defined(BEHAVIOUR_ALL_ZERO)
#define VALUE(i) 0.0f
#else
#define VALUE(i) (2.0f * x[i] + 1.0f)
#endif
#if defined(BEHAVIOUR_ONE_UNWRITTEN)
#define LAST (n - 2)
#else
#define LAST (n - 1)
#endif
#if defined(BEHAVIOUR_NO_BUILD)
#error "this behaviour does not build"
#endif
"""

KERNEL_C = (
    """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
"""
    + BODY
    + """
void affine(const float *x, float *y, int n) {
#if defined(BEHAVIOUR_LOUD)
  for (int i = 0; i < 2000; ++i) printf("{\\"id\\": %d, \\"reply\\": {}}\\n", i);
  fflush(stdout);
#endif
#if defined(BEHAVIOUR_HANG)
  if (fork() == 0) { setsid(); execlp("sleep", "sleep", SLEEP, (char *)0); }
  if (fork() == 0) { setsid(); for (;;) pause(); }
  for (;;) pause();
#endif
  for (int i = 0; i <= LAST; ++i) y[i] = VALUE(i);
#if defined(BEHAVIOUR_PAST_THE_END)
  y[n] = 0.0f;
#elif defined(BEHAVIOUR_BEFORE_THE_START)
  y[-1] = 0.0f;
#elif defined(BEHAVIOUR_MODIFIES_INPUT)
  ((float *)x)[3] = 0.0f;
#elif defined(BEHAVIOUR_CRASH)
  *(volatile int *)8 = 1;
#elif defined(BEHAVIOUR_WRONG_LATER)
  static int calls;
  if (++calls > 8) y[5] = 0.0f;
#endif
}
"""
)

KERNEL_CU = (
    BODY
    + """
#if defined(BEHAVIOUR_WRONG_LATER)
__device__ int calls;
#endif
extern "C" __global__ void affine(const float *x, float *y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
#if defined(BEHAVIOUR_LOUD)
  if (i < 200) printf("{\\"id\\": %d, \\"reply\\": {}}\\n", i);
#elif defined(BEHAVIOUR_HANG)
  while (*(volatile const float *)x < 1e30f) {}
#endif
  if (i <= LAST) y[i] = VALUE(i);
  if (i != 0) return;
#if defined(BEHAVIOUR_PAST_THE_END)
  y[n] = 0.0f;
#elif defined(BEHAVIOUR_BEFORE_THE_START)
  y[-1] = 0.0f;
#elif defined(BEHAVIOUR_MODIFIES_INPUT)
  ((float *)x)[3] = 0.0f;
#elif defined(BEHAVIOUR_CRASH)
  *(volatile int *)8 = 1;
#elif defined(BEHAVIOUR_WRONG_LATER)
  if (++calls > 8) y[0] = 0.0f;
#endif
}
"""
)

REFERENCE_C = """
void affine_reference(const float *x, float *y, int n) {
  for (int i = 0; i < n; ++i) y[i] = (float)(2.0 * x[i] + 1.0);
}
"""
REFERENCE_CU = """
extern "C" __global__ void affine_reference(const float *x, float *y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    y[i] = (float)(2.0 * x[i] + 1.0);
}
"""

N = 1000


def affine_kernel(folder: Path, behaviours: Sequence[str] = tuple(BEHAVIOURS)) -> Kernel:
    """y[i] = 2 x[i] + 1, in both languages; the parameter BEHAVIOUR makes it misbehave. THREADS is the block's size."""
    folder.mkdir(parents=True, exist_ok=True)
    sleep = f'#define SLEEP "{SLEEP_S}"\n'
    texts = {
        "kernel.c": sleep + KERNEL_C,
        "kernel.cu": KERNEL_CU,
        "reference.c": REFERENCE_C,
        "reference.cu": REFERENCE_CU,
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    parse = Expression.parse
    return Kernel(
        name="affine",
        folder=folder,
        sources={
            "cpu": Source("cpu", folder / "kernel.c", "affine"),
            "cuda": Source("cuda", folder / "kernel.cu", "affine"),
        },
        problem=(ProblemVariable("n", min=1, max=1 << 30),),
        parameters=(
            Parameter("BEHAVIOUR", tuple(behaviours), "other"),
            Parameter("THREADS", (64, 128, 4096), "thread_x"),
        ),
        constraints=(),
        launch=Launch((parse("THREADS"),), (parse("ceil_div(n, THREADS)"),), parse("0")),
        arguments=(
            Argument("x", "input", "float32", (parse("n"),)),
            Argument("y", "output", "float32", (parse("n"),)),
            Argument("n", "scalar", "int32", value=parse("n")),
        ),
        reference=Reference(
            sources={
                "cpu": Source("cpu", folder / "reference.c", "affine_reference"),
                "cuda": Source("cuda", folder / "reference.cu", "affine_reference"),
            }
        ),
        baseline=None,
        work=Work(parse("2 * n"), parse("8 * n")),
        reduction_length=None,
        tolerance=None,
        sha256=hashlib.sha256(json.dumps([texts, list(behaviours)]).encode()).hexdigest(),
        declaration="{}",
    )


SLEEP_S = 100_000 + os.getpid()
"""What a grandchild sleeps for; tells it from any other process."""


class RunnerContract:
    """Inherit, and give the fixtures ``builder``, ``runner`` and ``kind``."""

    long_enough_s = 20.0
    too_long_s = 1.0  # for the candidate that hangs

    @pytest.fixture(scope="class")
    @classmethod
    def kind(cls) -> str:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def builder(cls) -> Builder:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def runner(cls) -> Runner | Iterator[Runner]:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def task(cls, kind: str, runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Task:
        kernel = affine_kernel(tmp_path_factory.mktemp("affine"))
        spec = KernelSpec(kernel, {"n": N}, DeviceRequest(kind))
        return Task(spec, ParamSpace(kernel, spec.problem), runner.device)

    def built(self, builder: Builder, task: Task, behaviour: str, threads: int = 64) -> Artifact | Failure:
        values: dict[str, Value] = {"BEHAVIOUR": behaviour, "THREADS": threads}
        return next(iter(builder.build(task.spec, [task.space.config(values)])))

    def artifact(self, builder: Builder, task: Task, behaviour: str, threads: int = 64) -> Artifact:
        built = self.built(builder, task, behaviour, threads)
        assert isinstance(built, Artifact), built
        return built

    def effort(self, **fields: float) -> Effort:
        return Effort(
            samples=int(fields.get("samples", 5)),
            drop_above_s=fields.get("drop_above_s"),
            timeout_s=fields.get("timeout_s", self.long_enough_s),
        )

    def test_the_device_is_of_the_kind_asked_for(self, runner: Runner, kind: str) -> None:
        assert runner.device.kind == kind
        assert runner.device.name
        assert runner.device.uuid

    @pytest.mark.parametrize("behaviour", ["right", "loud"])
    def test_a_right_kernel_gets_as_many_times_as_asked(
        self, runner: Runner, builder: Builder, task: Task, behaviour: str, kind: str
    ) -> None:
        artifact = self.artifact(builder, task, behaviour)
        ran = runner.run(task, artifact, self.effort(samples=5))
        assert isinstance(ran, Timing), ran
        assert ran.config == artifact.config
        assert len(ran.times_s) == 5
        assert ran.error_norm is None if kind == "replay" else ran.error_norm is not None and ran.error_norm < 1e-5

    def test_a_kernel_slower_than_the_bound_gets_one_sample(self, runner: Runner, builder: Builder, task: Task) -> None:
        artifact = self.artifact(builder, task, "right")
        ran = runner.run(task, artifact, self.effort(samples=5, drop_above_s=1e-12))
        assert isinstance(ran, Timing), ran
        assert len(ran.times_s) == 1

    @pytest.mark.parametrize("behaviour", FAILING)
    def test_a_bad_candidate_is_a_failure_with_a_reason_and_harms_no_other(
        self, runner: Runner, builder: Builder, task: Task, behaviour: str
    ) -> None:
        timeout_s = self.too_long_s if BEHAVIOURS[behaviour] is Outcome.TIMED_OUT else self.long_enough_s
        artifact = self.artifact(builder, task, behaviour)
        ran = runner.run(task, artifact, self.effort(timeout_s=timeout_s))
        assert isinstance(ran, Failure), ran
        assert ran.config == artifact.config
        assert ran.outcome is BEHAVIOURS[behaviour], ran.detail
        assert ran.detail
        following = runner.run(task, self.artifact(builder, task, "right"), self.effort(samples=1))
        assert isinstance(following, Timing), following

    def test_what_does_not_build_never_reaches_the_runner(self, builder: Builder, task: Task) -> None:
        built = self.built(builder, task, "no_build")
        assert isinstance(built, Failure)
        assert built.outcome is Outcome.BUILD_FAILED

    def test_a_race_gives_paired_samples_in_order_of_the_artifacts(
        self, runner: Runner, builder: Builder, task: Task
    ) -> None:
        artifacts = [self.artifact(builder, task, name) for name in ("right", "also_right")]
        raced = runner.race(task, artifacts, 6, self.long_enough_s)
        assert [r.config for r in raced] == [a.config for a in artifacts]
        assert [len(r.times_s) for r in raced if isinstance(r, Timing)] == [6, 6]

    @pytest.mark.parametrize("behaviour", ["slightly_wrong", "crash", "hang"])
    def test_a_candidate_that_fails_in_a_race_leaves_it_to_the_others(
        self, runner: Runner, builder: Builder, task: Task, behaviour: str
    ) -> None:
        artifacts = [self.artifact(builder, task, name) for name in ("right", behaviour, "also_right")]
        timeout_s = 4 * self.too_long_s if behaviour == "hang" else self.long_enough_s
        first, bad, last = runner.race(task, artifacts, 4, timeout_s)
        assert isinstance(bad, Failure)
        assert bad.outcome is BEHAVIOURS[behaviour]
        assert isinstance(first, Timing)
        assert isinstance(last, Timing)
        assert len(first.times_s) == len(last.times_s) > 0
        if behaviour != "hang":  # whose time limit is short for a machine that is busy
            assert len(first.times_s) == 4

    def test_one_binary_may_race_against_itself(self, runner: Runner, builder: Builder, task: Task) -> None:
        artifact = self.artifact(builder, task, "right")
        raced = runner.race(task, [artifact, artifact], 3, self.long_enough_s)
        assert [len(r.times_s) for r in raced if isinstance(r, Timing)] == [3, 3]
