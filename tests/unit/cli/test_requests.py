import pytest
from moe.cli.errors import UsageError
from moe.cli.requests import generate_request, prompt_of, token_ids


def asked(piped=None, **given):
    forms = {"prompt": None, "chat": None, "system": None, "tokens": None, **given}
    return prompt_of(**forms, read_input=lambda: piped)


def test_raw_text_is_taken_as_it_is():
    assert asked(prompt=" a\n").text == " a\n"


def test_standard_input_is_the_prompt_when_none_is_named():
    assert asked(piped="ä b\n".encode()).text == "ä b\n"


def test_standard_input_is_not_read_when_a_prompt_is_named():
    assert asked(piped=b"piped", prompt="named").text == "named"


def test_a_dash_reads_standard_input():
    assert asked(piped=b"piped", prompt="-").text == "piped"


def test_a_chat_takes_its_text_from_standard_input_too():
    assert asked(piped=b"Hello", chat="-").chat.messages[0].content == "Hello"


def test_a_chat_begins_with_the_system_message():
    roles = [(message.role, message.content) for message in asked(chat="Hi", system="Be brief").chat.messages]
    assert roles == [("system", "Be brief"), ("user", "Hi")]


def test_token_ids_are_separated_by_commas_or_space():
    assert list(asked(tokens="[1, 2,3\n4]").tokens.ids) == [1, 2, 3, 4]


@pytest.mark.parametrize("text", ["1,x", "-1", "1.5", "4294967296", "²"])
def test_what_is_no_token_id_is_named(text):
    with pytest.raises(UsageError, match="is no token id"):
        token_ids(text)


def test_two_prompts_are_refused_by_their_options():
    with pytest.raises(UsageError, match="--prompt and --tokens exclude each other"):
        asked(prompt="a", tokens="1")


def test_a_system_message_without_a_chat_is_refused():
    with pytest.raises(UsageError, match="--system goes with --chat"):
        asked(prompt="a", system="b")


def test_no_prompt_in_a_terminal_says_what_to_give():
    with pytest.raises(UsageError, match="give --prompt TEXT"):
        asked()


def test_a_dash_in_a_terminal_is_refused():
    with pytest.raises(UsageError, match="--prompt - reads standard input, and that is a terminal"):
        asked(prompt="-")


def test_input_that_is_not_utf8_is_refused_at_its_byte():
    with pytest.raises(UsageError, match="standard input is not UTF-8 at byte 2"):
        asked(piped=b"ab\xff")


def test_a_command_line_that_is_not_utf8_is_refused_at_its_character():
    with pytest.raises(UsageError, match="--prompt is not UTF-8 at character 1"):
        asked(prompt="a\udcff")


def test_options_that_are_not_given_are_left_to_the_model():
    request = generate_request(asked(prompt="a"), {"temperature": None, "max_tokens": None})
    assert (request.HasField("max_tokens"), request.sampling.HasField("temperature")) == (False, False)


def test_zero_is_given_and_not_left_out():
    request = generate_request(asked(prompt="a"), {"temperature": 0.0, "seed": 0})
    assert (request.sampling.HasField("temperature"), request.sampling.HasField("seed")) == (True, True)


def test_stops_and_logprobs_reach_the_request():
    given = {"stop": ("x", "y"), "stop_token_id": (7,), "ignore_eos": True}
    request = generate_request(asked(prompt="a"), given, logprobs=0)
    assert (list(request.stop), list(request.stop_token_ids), request.ignore_eos, request.HasField("logprobs")) == (
        ["x", "y"],
        [7],
        True,
        True,
    )
