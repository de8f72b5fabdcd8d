"""The outcome of each fault in each tool: the table of docs/faults.md, all of which a test goes through."""

from typing import NamedTuple

TOOLS = ("train", "test pass", "bench", "view", "pack", "index", "check", "stage")
REST = ("bench", "view", "pack", "index", "check", "stage")
FAULTS = {
    "missing": "an image is missing",
    "cut JPEG": "a JPEG is cut off",
    "cut XML": "an XML is cut off",
    "EIO": "EIO for 0.5 s on the config, list, images and result",
    "EMFILE": "EMFILE for 0.5 s",
    "EACCES": "EACCES on an image",
    "hang": "storage hangs",
    "full": "the disk written to is full",
    "SIGTERM": "SIGTERM",
    "SIGKILL": "SIGKILL of one of 2 ranks",
}
# What is there afterwards. The test has a check of each.
COMPLETE = "the complete result, as without the fault"
NO_RESULT = "no result; the next start does all again"
GOES_ON = "no result; the next start resumes after what is done"
FOUND = "a report that counts 1 image"
SAVED = "a checkpoint; `--resume` resumes"
REPORTED = "the report on stdout, and a JSON file that is not whole"
RESUMES = "the run's directory; `--resume auto` resumes"


class Row(NamedTuple):
    fault: str  # a key of FAULTS
    tools: tuple[str, ...]
    code: int  # exit code, as a shell sees it
    says: str  # part of what is printed, FILE for the path of the file at fault, ... for anything in between
    left: str
    ends: str  # when the tool ends


REPAIR = "; repair it or take it out of the filelist"
IN_PIPELINE = "rank 0: cannot use FILE of the ... data: ..." + REPAIR
BOXES = "cannot read the boxes of train data: FILE is not XML: ..." + REPAIR
STOPS = "1 of ... images of the train list would stop training; --fix-list OUT writes a list"
NO_ANSWER = "FILE: no answer in 10 s; data.stall_timeout_s is how long to wait"
NO_SPACE = "cannot write ...: ...No space left on device"
KILLED = "signal 9"
AT_FILE, LATER, BEGIN = "at the file", "after all files", "before the first batch"
WRITE, BY_MPIRUN = "at the write", "when mpirun has ended the other rank"


def unreadable(fault: str, why: str) -> tuple[Row, ...]:
    """Returns the rows of an image that cannot be opened, for the reason `why`."""
    named = f"cannot use FILE of the ... data: {why}{REPAIR}"
    return (
        Row(fault, ("train", "test pass"), 1, f"rank 0: {named}", RESUMES, AT_FILE),
        Row(fault, ("bench", "view"), 1, f"rank 0: {named}", NO_RESULT, AT_FILE),
        Row(fault, ("pack",), 2, f"cannot use FILE: {why}{REPAIR}", GOES_ON, AT_FILE),
        Row(fault, ("index",), 2, f"{why}: 'FILE'{REPAIR}", GOES_ON, LATER),
        Row(fault, ("check",), 1, STOPS, FOUND, LATER),
        Row(fault, ("stage",), 1, f"cannot copy FILE to ...: {why}", GOES_ON, LATER),
    )


def retried(fault: str, why: str, cause: str) -> tuple[Row, ...]:
    """Returns the rows of an error that passes: TensorFlow quotes the system's message `why` after the path."""
    again = f"{why}... ({cause}); tries again in 1 s, 1 of 5"
    return (
        Row(fault, ("train", "test pass", "view"), 0, f"rank 0: ...; {again}", COMPLETE, "after 1 s more"),
        Row(fault, ("bench", "pack", "index", "check", "stage"), 0, again, COMPLETE, "after 1 s more"),
    )


ROWS = (
    *unreadable("missing", "No such file or directory"),
    Row("cut JPEG", ("train", "test pass"), 1, IN_PIPELINE, RESUMES, AT_FILE),
    Row("cut JPEG", ("bench", "view"), 1, IN_PIPELINE, NO_RESULT, AT_FILE),
    Row("cut JPEG", ("pack", "index", "stage"), 0, "", COMPLETE, LATER),
    Row("cut JPEG", ("check",), 1, STOPS, FOUND, LATER),
    Row("cut XML", ("train",), 2, BOXES, NO_RESULT, BEGIN),
    Row("cut XML", ("test pass",), 1, IN_PIPELINE, RESUMES, AT_FILE),
    Row("cut XML", ("bench", "view"), 1, IN_PIPELINE, NO_RESULT, AT_FILE),
    Row("cut XML", ("pack",), 2, BOXES, NO_RESULT, BEGIN),
    Row("cut XML", ("index",), 2, "FILE is not XML: ..." + REPAIR, GOES_ON, LATER),
    Row("cut XML", ("check",), 1, STOPS, FOUND, LATER),
    Row("cut XML", ("stage",), 0, "", COMPLETE, LATER),
    *retried("EIO", "Input/output error", "the disk or the file server failed"),
    *retried("EMFILE", "Too many open files", "this process has too many files open: ulimit -n"),
    *unreadable("EACCES", "Permission denied"),
    Row("hang", ("train", "test pass"), 1, NO_ANSWER, RESUMES, "10 s after `data.stall_timeout_s`, 900 s by default"),
    Row("hang", REST, 0, "", COMPLETE, "once the storage answers"),
    Row("full", ("train", "test pass"), 2, NO_SPACE + "; once it can be written, continue the run", RESUMES, WRITE),
    Row("full", ("bench", "check"), 2, NO_SPACE, REPORTED, WRITE),
    Row("full", ("view",), 2, NO_SPACE, NO_RESULT, WRITE),
    Row("full", ("pack", "index"), 2, NO_SPACE, GOES_ON, WRITE),
    Row("full", ("stage",), 1, "cannot copy ...: No space left on device", GOES_ON, "after 20 files"),
    Row("SIGTERM", ("train", "test pass"), 75, "SIGTERM: finishes the step and saves", SAVED, "after the step"),
    Row("SIGTERM", ("bench", "view", "check"), 143, "", NO_RESULT, "at once"),
    Row("SIGTERM", ("pack", "index", "stage"), 143, "", GOES_ON, "at once"),
    Row("SIGKILL", ("train", "test pass"), 137, KILLED, RESUMES, BY_MPIRUN),
    Row("SIGKILL", ("bench", "check"), 137, KILLED, NO_RESULT, BY_MPIRUN),
    Row("SIGKILL", ("view",), 137, "", NO_RESULT, "at once: it is one process"),
    Row("SIGKILL", ("pack", "index", "stage"), 137, KILLED, GOES_ON, BY_MPIRUN),
)  # fmt: skip


def cells() -> list[tuple[Row, str]]:
    return [(row, tool) for row in ROWS for tool in row.tools]


def markdown() -> str:
    """Returns the table as it stands in docs/faults.md, with the messages and the outcomes below it."""
    messages = list(dict.fromkeys(row.says for row in ROWS if row.says))
    outcomes = dict(zip(dict.fromkeys(row.left for row in ROWS), "ABCDEFGH", strict=False))
    lines = ["| Fault | Tool | Code | Message | Afterwards | Ends |", "|---|---|---|---|---|---|"]
    fault = ""
    for row in ROWS:
        says = str(messages.index(row.says) + 1) if row.says else "none"
        name = FAULTS[row.fault] if row.fault != fault else ""
        words = (name, ", ".join(row.tools), str(row.code), says, outcomes[row.left], row.ends)
        lines.append(f"| {' | '.join(words)} |")
        fault = row.fault
    lines += ["", "Afterwards:", "", *(f"- **{letter}**: {left}" for left, letter in outcomes.items())]
    lines += ["", "Messages:", "", *(f"{number}. `{says}`" for number, says in enumerate(messages, start=1))]
    return "\n".join(lines) + "\n"
