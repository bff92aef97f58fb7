"""What models say in each form that engine/dialect_rows.c has, and templates that show it: our own, short, one for each row. A scripted model then
says the texts, a token for each byte or with the marks as tokens of their own."""
import json
import subprocess

from conftest import BUILD, ROOT

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Tells the weather.", "strict": True, "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"], "additionalProperties": False}}},
    {"type": "function", "function": {"name": "get_time", "strict": True, "parameters": {
        "type": "object", "properties": {"zones": {"type": "array", "items": {"type": "string"}}, "exact": {"type": "boolean"}}, "required": ["zones", "exact"], "additionalProperties": False}}},
    {"type": "function", "function": {"name": "ping", "description": "Has no parameters.", "strict": True, "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}},
]
FLAT = [{"type": "function", **t["function"]} for t in TOOLS]


class Dialect:
    def __init__(self, name, shape, begin="", middle="", arg=("", "", ""), end="", between="", open="", close="", member="arguments", bare=False, think=("<think>", "</think>", "\n\n"), marks=(), control=False):
        self.name, self.shape, self.begin, self.middle, self.arg, self.end, self.between = name, shape, begin, middle, arg, end, between
        self.open, self.close, self.member, self.bare, self.think, self.marks, self.control = open, close, member, bare, think, marks, control

    def one(self, name, args):
        """A call as it stands between begin and end."""
        if self.shape in ("object", "list"):
            return json.dumps({"name": name, self.member: args})
        if self.shape == "named":
            return name + self.middle + json.dumps(args)
        first, second, third = self.arg
        return name + self.middle + "".join(first + k + second + (v if isinstance(v, str) else json.dumps(v)) + third for k, v in args.items())

    def say(self, *calls):
        """The calls of a turn, as the model writes them."""
        each = [self.one(*c) for c in calls]
        if self.shape == "list":
            return self.begin + "[" + self.between.join(each) + "]" + self.end
        return self.open + self.between.join(self.begin + c + self.end for c in each) + self.close

    def thought(self, text):
        return self.think[0] + ("" if self.think[0].endswith("\n") else "\n") + text + "\n" + self.think[1] + self.think[2]

    def template(self, opens=False):
        """opens: the prompt of an answer ends within a thought."""
        def text(s):
            return "{{ " + json.dumps(s) + " }}" if s else ""

        def obj(c):
            return text('{"name": "') + "{{ " + c + ".function.name }}" + text(f'", "{self.member}": ') + "{{ " + c + ".function.arguments | tojson }}" + text("}")

        if self.shape == "object":
            call = text(self.begin) + obj("c") + text(self.end)
        elif self.shape == "list":
            call = obj("c")
        elif self.shape == "named":
            call = text(self.begin) + "{{ c.function.name }}" + text(self.middle) + "{{ c.function.arguments | tojson }}" + text(self.end)
        else:
            value = "{{ v if v is string else v | tojson }}"
            call = (text(self.begin) + "{{ c.function.name }}" + text(self.middle) + "{% for k, v in c.function.arguments.items() %}" + text(self.arg[0]) + "{{ k }}" + text(self.arg[1]) + value +
                    text(self.arg[2]) + "{% endfor %}" + text(self.end))
        calls = "{% for c in m.tool_calls %}" + call + "{% if not loop.last %}" + text(self.between) + "{% endif %}{% endfor %}"
        calls = text(self.begin + "[") + calls + text("]" + self.end) if self.shape == "list" else text(self.open) + calls + text(self.close)
        return ("{% if tools %}" + text("<|im_start|>system\n") + "{{ tools | tojson }}" + text("<|im_end|>\n") + "{% endif %}"
                "{% for m in messages %}" + text("<|im_start|>") + "{{ m.role }}" + text("\n") +
                "{% if m.reasoning_content %}" + text(self.think[0] + "\n") + "{{ m.reasoning_content }}" + text("\n" + self.think[1] + self.think[2]) + "{% endif %}"
                "{{ m.content or '' }}{% if m.tool_calls %}" + calls + "{% endif %}" + text("<|im_end|>\n") + "{% endfor %}"
                "{% if add_generation_prompt %}" + text("<|im_start|>assistant\n" + (self.think[0] + "\n" if opens else "")) + "{% endif %}")


def list_form(name, begin, end="", control=False):
    return Dialect(name, "list", begin=begin, end=end, between=", ", marks=[m for m in (begin, end) if m], control=control)


DIALECTS = [
    Dialect("hermes", "object", begin="<tool_call>\n", end="\n</tool_call>", between="\n", marks=["<tool_call>", "</tool_call>"]),
    Dialect("qwen3-xml", "tags", begin="<tool_call>\n<function=", middle=">\n", arg=("<parameter=", ">\n", "\n</parameter>\n"), end="</function>\n</tool_call>", between="\n", marks=["<tool_call>", "</tool_call>"]),
    Dialect("seed", "tags", begin="<seed:tool_call>\n<function=", middle=">\n", arg=("<parameter=", ">", "</parameter>\n"), end="</function>\n</seed:tool_call>", between="\n",
            think=("<seed:think>", "</seed:think>", "\n"), marks=["<seed:tool_call>", "</seed:tool_call>"]),
    Dialect("glm", "tags", begin="<tool_call>", middle="\n", arg=("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"), end="</tool_call>", between="\n",
            marks=["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]),
    Dialect("glm-tight", "tags", begin="<tool_call>", arg=("<arg_key>", "</arg_key><arg_value>", "</arg_value>"), end="</tool_call>",
            marks=["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]),
    Dialect("minimax", "tags", open="<minimax:tool_call>\n", begin='<invoke name="', middle='">\n', arg=('<parameter name="', '">', "</parameter>\n"), end="</invoke>\n", close="</minimax:tool_call>",
            marks=["<minimax:tool_call>", "</minimax:tool_call>"]),
    Dialect("mistral-args", "named", begin="[TOOL_CALLS]", middle="[ARGS]", think=("[THINK]", "[/THINK]", ""), marks=["[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"], control=True),
    list_form("mistral", "[TOOL_CALLS]", control=True),
    Dialect("functionary", "named", begin="<function=", middle=">", end="</function>", marks=["<function=", "</function>"]),
    list_form("phi", "<|tool_call|>", "<|/tool_call|>", control=True),
    list_form("granite", "<|tool_call|>"),
    list_form("functools", "functools"),
    list_form("apriel", "<tool_calls>", "</tool_calls>"),
    Dialect("gigachat", "object", begin="<|function_call|>", marks=["<|function_call|>"]),
    Dialect("llama3", "object", member="parameters", between="; ", bare=True, marks=["<|python_tag|>"]),
]

PARIS, TWO_DAYS, TIMES = ("get_weather", {"city": "Paris"}), ("get_weather", {"city": "São \"Paulo\" <b>", "days": 2}), ("get_time", {"zones": ["CET", "UTC"], "exact": True})
PING = ("ping", {})


def cases(d):
    """What a model of this dialect says by the last digit of the prompt: (text, content, reasoning, calls). content None: as it was written."""
    alone = [(PARIS,), (TWO_DAYS, TIMES), (PING,), (PING, PARIS)]
    c = {str(i): (d.say(*calls), "", "", list(calls)) for i, calls in enumerate(alone)}
    c["4"] = ("Just text, [1] and {\"a\": 2}.", None, "", [])
    c["5"] = (d.thought("Paris, then.") + d.say(PARIS, PING), "", "Paris, then.", [PARIS, PING])
    c["6"] = (d.thought("Nothing to call.") + "It is late.", "It is late.", "Nothing to call.", [])
    c["7"] = (d.say(("nobody", {"city": "Paris"})), None, "", [])
    if not d.bare:
        c["8"] = ("I shall look.\n\n" + d.say(TIMES), "I shall look.", "", [TIMES])
        c["9"] = (d.say(PARIS)[: len(d.open + d.begin) + 2], None, "", [])
    return c


def write(d, path, tokens=False, opens=False, plain="Which case?"):
    """A scripted model of this dialect; tokens: marks are tokens of their own, as they are in its models' vocabularies. opens: its template opens a
    thought, and the model only ends it. plain: what it says where no case is asked for."""
    template = path.with_suffix(".jinja")
    template.write_text(d.template(opens))
    args = [str(BUILD / "tests/gen/script"), str(path), "--weights", "1MiB", "--template", str(template)]
    for mark in dict.fromkeys([*d.marks, *(t.strip() for t in d.think[:2])] if tokens else []):
        args += ["--control" if d.control else "--special", mark]
    said = cases(d)
    if opens:
        said = {k: v for k, v in said.items() if v[2]}  # what the prompt has of an answer counts as said (engine/families/script.c)
    args += ["--text", plain]
    for digit, (text, *_) in said.items():
        args += ["--case", digit, text]
    subprocess.run(args, check=True, cwd=ROOT)
    return path
