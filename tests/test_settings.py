"""A setting comes from the highest place that names it, and a wrong one is said with that place."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datakit import InputError, NotFound, UsageError, settings
from datakit.cli import frame
from support.docs import commands, setting_rows


def params(text: str, *, name: str = "params.yaml") -> Path:
    """A settings file in the current directory."""
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


def origin_of(loaded: settings.Settings, name: str) -> str:
    """Where a setting's value came from."""
    return next(each.origin for each in loaded.listing() if each.name == name)


LEVELS = st.fixed_dictionaries(
    {}, optional={level: st.integers(1, 10_000) for level in ("flag", "environment", "file")}
)


@given(LEVELS)
def test_the_highest_place_that_names_a_setting_wins(levels: dict[str, int]) -> None:
    """Flag over environment over file over default, and the origin says which one it was."""
    file = params(f"train: {{steps: {levels['file']}}}" if "file" in levels else "train:", name="some.yaml")
    env = {"DATAKIT_TRAIN__STEPS": str(levels["environment"])} if "environment" in levels else {}
    flags = {"train.steps": levels["flag"]} if "flag" in levels else {}

    loaded = settings.load(file, flags=flags, env=env)

    names = {"flag": "--steps", "environment": "DATAKIT_TRAIN__STEPS", "file": "some.yaml line 1"}
    winner = next((level for level in names if level in levels), None)
    assert loaded.train.steps == (settings.Recipe().steps if winner is None else levels[winner])
    assert origin_of(loaded, "train.steps") == ("default" if winner is None else names[winner])


def test_the_origin_of_a_flag_is_an_option_of_its_command() -> None:
    """A person can write what is said to have set a value: `--split`, though the setting is `pack.splits`."""
    given: dict[str, object] = {"pack.shard_size": "1MiB", "pack.splits": {"a": 1}, "train.learning_rate": 1e-3}
    helps = " ".join(command.help for command in commands()).split()

    origins = settings.load(flags=given, env={}).origins

    assert origins == {
        "pack.shard_size": "--shard-size", "pack.splits": "--split", "train.learning_rate": "--learning-rate"
    }  # fmt: skip
    assert set(origins.values()) <= set(helps)


def test_without_a_file_all_is_default() -> None:
    """No params.yaml in the current directory is no error."""
    loaded = settings.load(env={})

    assert loaded.train == settings.Recipe()
    assert loaded.pack == settings.PackSettings()
    assert {each.origin for each in loaded.listing()} == {"default"}


def test_the_file_of_the_current_directory_is_read_unasked() -> None:
    """`params.yaml` is found where the command runs, and each value knows its line."""
    params("# mine\npack:\n  shard_size: 1MiB\n\ntrain:\n  rank: 4\n")

    loaded = settings.load(env={})

    assert (loaded.pack.shard_size, loaded.train.rank) == ("1MiB", 4)
    assert origin_of(loaded, "pack.shard_size") == "params.yaml line 3"
    assert origin_of(loaded, "train.rank") == "params.yaml line 6"


def test_a_named_file_must_be_there() -> None:
    """A file that the user named and that is missing is wrong usage, unlike the one looked for unasked."""
    with pytest.raises(NotFound, match=r"there is no settings file conf/x\.yaml"):
        settings.load(Path("conf/x.yaml"), env={})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: {rnk: 3}", "'rnk' is no setting of train (params.yaml line 1). Did you mean rank?"),
        ("\ntrian: {rank: 3}", "'trian' is no section (params.yaml line 2). Did you mean train?"),
        ("stores: {r2: {ulr: x}}", "'ulr' is no setting of stores.r2 (params.yaml line 1). Did you mean url?"),
        (
            "zzz: {a: 1}",
            "'zzz' is no section (params.yaml line 1). There are: pack, tokenize, sync, train, stores, tiers",
        ),
        ("train: {rank: many}", "train.rank is 'many' (params.yaml line 1). Input should be a valid integer"),
        ("train: {rank: '8'}", "train.rank is '8' (params.yaml line 1). Input should be a valid integer"),
        ("train: {rank: yes}", "train.rank is True (params.yaml line 1). Input should be a valid integer"),
        ("train: {rank: 0}", "train.rank is 0 (params.yaml line 1). It must be at least 1"),
        (
            "pack: {layout: best}",
            "pack.layout is 'best' (params.yaml line 1). Input should be 'stable', 'seq",
        ),
        ("tokenize: {template: 8}", "tokenize.template is 8 (params.yaml line 1). Input should be a valid string"),
        ("stores: {r2: {secret_access_key: [1]}}", "stores.r2.secret_access_key is written in the file itself"),
    ],
)
def test_a_wrong_setting_is_one_sentence_with_its_place(text: str, message: str) -> None:
    """Unknown names come with a suggestion, wrong values with what is wanted; both with file and line."""
    params(text)

    with pytest.raises(UsageError) as caught:
        settings.load(env={})

    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: 3", "params.yaml line 1: train holds no names and values"),
        ("- a\n- b", "params.yaml line 1: the file holds no names and values"),
        ("train:\n  rank: 1\n  rank: 2", "params.yaml line 3: rank stands twice in train"),
        ("train: {", "params.yaml is not YAML"),
        ("train: !!python/object/apply:os.system [ls]", "params.yaml line 1: train holds no names and values"),
        ("stores: {r2: s3://b}", "params.yaml line 1: stores.r2 holds no names and values"),
    ],
)
def test_a_file_that_is_no_settings_file_is_said_to_be_none(text: str, message: str) -> None:
    """YAML that cannot be read, that is not made of sections, or that says one thing twice."""
    params(text)

    with pytest.raises(InputError) as caught:
        settings.load(env={})

    assert str(caught.value).startswith(message)


def test_a_file_in_another_encoding_is_said_to_be_no_yaml() -> None:
    """Bytes that are not UTF-8 end in a sentence."""
    Path("params.yaml").write_bytes(b"train: {precision: \xff}")

    with pytest.raises(InputError, match=r"params\.yaml is not YAML"):
        settings.load(env={})


def test_no_code_runs_from_a_settings_file() -> None:
    """YAML's tags for Python objects are errors, not objects."""
    params("train: {rank: !!python/object/apply:os.getpid []}")

    with pytest.raises(InputError, match="is not YAML"):
        settings.load(env={})


@pytest.mark.parametrize(("text", "value"), [("2e-4", 2e-4), ("0.001", 0.001), ("1", 1.0), ("1E-3", 1e-3)])
def test_numbers_are_read_as_people_write_them(text: str, value: float) -> None:
    """2e-4 is a number, as in YAML 1.2, in the file and in the environment."""
    params(f"train: {{learning_rate: {text}}}")

    from_file = settings.load(env={})
    from_env = settings.load(env={"DATAKIT_TRAIN__LEARNING_RATE": text})

    assert from_file.train.learning_rate == from_env.train.learning_rate == value


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("DATAKIT_TRAIN__TARGETS", "[k_proj, o_proj]", "train.targets", ("k_proj", "o_proj")),
        ("DATAKIT_TRAIN__MAX_GRAD_NORM", "null", "train.max_grad_norm", None),
        ("DATAKIT_PACK__NAME", "8", "pack.name", "8"),
        ("DATAKIT_PACK__SHARD_SIZE", "1048576", "pack.shard_size", 1048576),
        ("DATAKIT_PACK__SPLITS", "{a: 1, b: 2}", "pack.splits", {"a": 1, "b": 2}),
        ("DATAKIT_TOKENIZE__TEMPLATE", "a: b: c", "tokenize.template", "a: b: c"),
    ],
)
def test_a_variable_is_read_in_the_type_of_its_setting(variable: str, text: str, name: str, value: object) -> None:
    """A variable holds YAML where that fits the setting, and plain text where the setting is text."""
    loaded = settings.load(env={variable: text})

    assert next(each.value for each in loaded.listing() if each.name == name) == value


@pytest.mark.parametrize("variable", ["DATAKIT_TRAIN__RNK", "DATAKIT_TRIAN__RANK", "DATAKIT_STORES__R2__ULR"])
def test_a_variable_with_a_typing_error_is_an_error(variable: str) -> None:
    """A misspelt variable is not passed over in silence."""
    with pytest.raises(UsageError, match=rf"\({variable}\)\. Did you mean"):
        settings.load(env={variable: "1"})


def test_variables_that_are_no_settings_are_left_alone() -> None:
    """DATAKIT_DEBUG and variables of others say nothing about settings."""
    loaded = settings.load(env={"DATAKIT_DEBUG": "1", "TRAIN__RANK": "3"})

    assert loaded.train.rank == settings.Recipe().rank


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("DATAKIT_TRAIN_STEPS", "Did you mean DATAKIT_TRAIN__STEPS?"),
        ("DATAKIT_PACK_SHARD_SIZE", "Did you mean DATAKIT_PACK__SHARD_SIZE?"),
        ("DATAKIT_HOME", "There are DATAKIT_SECTION__SETTING and DATAKIT_DEBUG, DATAKIT_DEMO, DATAKIT_STORE_PROVIDER"),
    ],
)
def test_a_variable_of_ours_that_names_no_setting_is_an_error(variable: str, hint: str) -> None:
    """One underscore too few would otherwise train with the value that was meant to be replaced."""
    with pytest.raises(UsageError) as caught:
        settings.load(env={variable: "3"})

    assert caught.value.message == f"the variable {variable} is no setting"
    assert caught.value.hint == hint


def test_a_folder_in_place_of_the_settings_file_is_wrong_usage() -> None:
    """It is one sentence, not a defect."""
    Path("folder").mkdir()

    with pytest.raises(UsageError, match="folder is no settings file: Is a directory"):
        settings.load(Path("folder"))


def test_sections_of_your_own_start_with_x_and_are_not_looked_at() -> None:
    """A pipeline may keep parameters of its own stages in the same file."""
    params("x-evaluate: {questions: [a, b]}\nx-note: anything\n")

    assert settings.load(env={}).train == settings.Recipe()


STORE = "stores: {r2: {url: 's3://b', access_key_id: '${AK}', secret_access_key: '${SK}'}}"


def test_a_secret_is_a_reference_to_a_variable_and_is_never_shown() -> None:
    """`${NAME}` gives the variable's value to the store; lists, reprs and JSON show none of it."""
    params(STORE)

    loaded = settings.load(env={"AK": "AKIA123", "SK": "hunter2"})

    assert loaded.stores["r2"].secret_access_key == "hunter2"
    assert loaded.stores["r2"].access_key_id == "AKIA123"
    shown = {each.name: each.value for each in loaded.listing()}
    assert shown["stores.r2.secret_access_key"] == "***"
    for text in (repr(loaded), str(loaded.stores), str(loaded.listing()), str(frame.plain(loaded))):
        assert "hunter2" not in text
        assert "AKIA123" not in text


def test_a_secret_written_into_the_file_is_refused_without_being_repeated() -> None:
    """Git and DVC keep the file, so the message tells how to take the secret out of it."""
    params("stores: {r2: {url: 's3://b', access_key_id: '${AK}', secret_access_key: hunter2}}")

    with pytest.raises(UsageError) as caught:
        settings.load(env={"AK": "a"})

    assert "hunter2" not in str(caught.value)
    assert str(caught.value).endswith(
        "Write ${R2_SECRET_ACCESS_KEY} there and set the variable: export R2_SECRET_ACCESS_KEY=..."
    )


def test_a_secret_of_the_wrong_type_is_not_repeated_either() -> None:
    """A message about a value leaves the value out when it is a secret."""
    with pytest.raises(UsageError) as caught:
        settings.load(
            env={"DATAKIT_STORES__R2__SECRET_ACCESS_KEY": "", "DATAKIT_STORES__R2__VIRTUAL_HOSTED": "[hunter2]"}
        )
    assert "stores.r2.virtual_hosted is ['hunter2']" in str(caught.value)

    with pytest.raises(UsageError) as caught:
        settings.load(flags={"stores.r2.secret_access_key": ["hunter2"]}, env={})

    assert str(caught.value).startswith("stores.r2.secret_access_key is *** (--secret-access-key)")


def test_a_store_whose_variable_is_missing_fails_only_when_it_is_used() -> None:
    """Packing on a local disk works on a machine that doesn't know the bucket's secret."""
    params(STORE)

    loaded = settings.load(env={"AK": "a"})

    assert list(loaded.stores) == ["r2"]
    assert loaded.listing()[-1].name == "stores.r2"
    with pytest.raises(UsageError) as caught:
        loaded.stores["r2"]
    assert str(caught.value) == (
        "stores.r2.secret_access_key refers to ${SK}, which is not set (params.yaml line 1). export SK=..."
    )


def test_a_store_may_come_from_the_environment_alone() -> None:
    """DATAKIT_STORES__NAME__FIELD makes a store without any file."""
    env = {"DATAKIT_STORES__R2__URL": "s3://b/x", "DATAKIT_STORES__R2__REGION": "auto"}

    loaded = settings.load(env=env)

    assert (loaded.stores["r2"].url, loaded.stores["r2"].region) == ("s3://b/x", "auto")


def test_every_setting_has_one_row_with_a_meaning_in_the_reference() -> None:
    """docs/settings.md is generated from the classes, and each field's docstring line is its meaning."""
    fields = {
        f"{section}.{field.name}"
        for section, kind in {
            **settings.SECTIONS,
            **{f"{each}.NAME": of for each, of in settings.NAMED.items()},
        }.items()
        for field in dataclasses.fields(kind)
    }

    rows = {row.name: row for row in setting_rows()}

    assert set(rows) == fields
    assert all(row.meaning for row in rows.values())


def test_tiers_stand_by_their_names_with_their_origin() -> None:
    """In the order of their temperature, after the stores; a variable gives a budget too."""
    params("tiers:\n  cache: {place: /nvme/x, budget: 500GB}\n  cold: {place: 's3://b/datasets'}\n")

    loaded = settings.load(env={"DATAKIT_TIERS__CACHE__BUDGET": "1TB"})

    assert loaded.tiers["cache"] == settings.TierOptions("/nvme/x", "1TB")
    assert [(each.name, each.value, each.origin) for each in loaded.listing()[-4:]] == [
        ("tiers.cold.place", "s3://b/datasets", "params.yaml line 3"),
        ("tiers.cold.budget", None, "default"),
        ("tiers.cache.place", "/nvme/x", "params.yaml line 2"),
        ("tiers.cache.budget", "1TB", "DATAKIT_TIERS__CACHE__BUDGET"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tiers: {warm: {place: /x}}", "there is no tier warm. There are: cold, hot, cache"),
        ("tiers: {cache: {place: /x}}", "tiers.cache has no budget"),
        ("tiers: {cache: {place: /x, budget: 9 apples}}", "tiers.cache: '9 apples' is not a size"),
        ("tiers: {cache: {place: /x, size: 9}}", "'size' is no setting of tiers.cache (params.yaml line 1)"),
        ("tiers: {cache: /x}", "params.yaml line 1: tiers.cache holds no names and values"),
    ],
)
def test_a_slip_in_a_tier_is_said(text: str, said: str) -> None:
    """Before anything is done."""
    params(text)

    with pytest.raises((UsageError, InputError)) as caught:
        settings.load(env={})

    assert said in str(caught.value)
