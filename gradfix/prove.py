"""What a rewrite is worth: the script before and after, effect imposed, compared. See DESIGN section 5."""

from gradfix.verdict import Status, Verdict

__all__ = ["Status", "Verdict"]
