"""Files of an operator beside the plays: in no bundle, and in no commit."""

from pathlib import Path

from scripts.bundle.__main__ import OPERATORS_FILES, ROOT, copy_part
from scripts.playbooks import ANSIBLE


def test_a_bundle_holds_no_secret_and_no_inventory(tmp_path: Path) -> None:
    plays = tmp_path / "ansible"
    for name in ("site.yml", "roles/host/tasks/main.yml"):
        (plays / name).parent.mkdir(parents=True, exist_ok=True)
        (plays / name).write_text("---\n")
    for name in ("hosts.ini", "dlog-orders.secret", "dlog-orders.serf", "group_vars/dlog.yml"):
        (plays / name).parent.mkdir(exist_ok=True)
        (plays / name).write_text("private")
    copy_part(plays, tmp_path / "bundle")
    copied = {path for path in (tmp_path / "bundle").rglob("*") if path.is_file()}
    assert {path.relative_to(tmp_path / "bundle").as_posix() for path in copied} == {
        "site.yml",
        "roles/host/tasks/main.yml",
    }


def test_a_bundle_holds_all_plays(tmp_path: Path) -> None:
    copy_part(ANSIBLE, tmp_path / "bundle")
    for path in [*ANSIBLE.glob("*.yml"), *ANSIBLE.glob("roles/**/*.yml")]:
        assert (tmp_path / "bundle" / path.relative_to(ANSIBLE)).is_file(), path


def test_git_ignores_them() -> None:
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {f"deploy/ansible/{name}" for name in OPERATORS_FILES} <= set(ignored)
