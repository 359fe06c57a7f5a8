"""What a rewrite is worth: the script before and after, effect imposed, compared. See DESIGN section 5."""

from gradfix.prove.prover import Prover
from gradfix.prove.runner import Runner
from gradfix.prove.runs import Baseline
from gradfix.verdict import Status, Verdict

__all__ = ["Baseline", "Prover", "Runner", "Status", "Verdict"]
