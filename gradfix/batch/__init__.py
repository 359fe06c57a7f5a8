"""Many repositories through find, cure, prove, commit, report: in parallel, resumable, without damage.

``intake`` says what a path is, ``one`` works on one repository and changes nothing, ``engine`` spreads that over
processes, ``state`` remembers, ``effects`` writes what was asked for, ``report`` tells of it; ``migrate`` conducts.
"""
