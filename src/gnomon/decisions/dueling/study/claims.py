"""What must come out: the sheet's claims, with its prototype's figures beside them."""

from __future__ import annotations

from gnomon.decisions.dueling.study.experiments import DELTAS, NS, REAL
from gnomon.study import always, at_least, at_most, better, estimate, rate, slope, worse

PROTOTYPE = "Sheet's prototype: "
SYNTHETIC = ["flat", "cyclic"]
RUCB, WSW = "relative UCB", "winner stays"

CLAIMS = [
    # 1: error
    *(
        rate(
            "wrong",
            "tgite",
            at_most=2 * delta,
            on={"delta": delta},
            each=["matrix", "n"],
            table="Error",
            id=f"error-{delta:g}",
            text=f"With delta = {delta:g} the wrong arm is named at a rate of which the upper 95 % bound is at most {2 * delta:g}, "
            "on each matrix, cyclic ones included",
            paper="Abstract: BAI with error at most delta; " + PROTOTYPE + "no error in 348 runs",
        )
        for delta in DELTAS
    ),
    # 2: duels linear in N
    slope(
        "duels",
        "tgite",
        along="n",
        between=(0.85, 1.15),
        on={"matrix": SYNTHETIC},
        each="matrix",
        table="Scaling",
        id="duels-linear",
        text="Duels to the answer grow as N^s with s in [0.85, 1.15] from N = 16 to 256, on the flat and the cyclic matrix",
        paper="Abstract: sample complexity O(N); "
        + PROTOTYPE
        + "1.00 [.97, 1.03] and .96 [.94, .99]; N ln N would give 1.25",
    ),
    slope(
        "duels",
        "tgite",
        along="n",
        on={"matrix": "bradley-terry"},
        table="Scaling",
        report=True,
        id="duels-bradley-terry",
        text="The same exponent under Bradley-Terry, where the gaps shrink as N grows",
        paper=PROTOTYPE + "1.16 [1.08, 1.22]",
    ),
    slope(
        "duels",
        "tgite",
        along="hardness",
        on={"matrix": "bradley-terry"},
        table="Scaling",
        report=True,
        id="duels-hardness",
        text="and the exponent in the sum of 1 / gap^2 there",
    ),
    better(
        "duels",
        "tgite",
        "union bounds",
        on={"matrix": SYNTHETIC},
        each=["matrix", "n"],
        table="Scaling",
        id="union-costs",
        text="With x / N for each match and a union bound in the screen more duels are needed, at each N",
        paper="O(N log N)",
    ),
    estimate(
        "growth",
        at_least=0,
        on={"matrix": SYNTHETIC, "contender": "union bounds"},
        each="matrix",
        unit="run",
        table="Overhead",
        id="union-grows",
        text="and the more so the larger N: the logarithm of the ratio grows with ln N",
        paper="O(N log N) against O(N)",
    ),
    estimate(
        "growth",
        at_least=0,
        on={"contender": "constant tree"},
        each="matrix",
        unit="run",
        table="Overhead",
        report=True,
        id="constant-tree-grows",
        text="The same of a tree with x / log2 N at each level",
    ),
    # 3: weak regret
    at_most(
        "growth",
        "tgite",
        0,
        each=["matrix", "n"],
        table="Weak",
        id="weak-ends",
        text="Weak (binary) regret at 10^6 duels is at most 1.05 times that at 4 10^5",
        paper="Abstract: weak regret O(N), bounded in T",
    ),
    *(
        better(
            "weak_per_arm",
            {"contender": "tgite", "n": n},
            [{"contender": "tgite", "n": m} for m in NS if m != n],
            factor=1 / 3,
            each="matrix",
            table="Weak",
            id=f"weak-linear-{n}",
            text=f"Weak regret / N at N = {n} is less than 3 times that at {' and '.join(str(m) for m in NS if m != n)}",
            paper=PROTOTYPE + "158 / 147 / 160 (flat), 87 / 87 / 127 (cyclic), 59 / 83 / 51 (Bradley-Terry)",
        )
        for n in NS
    ),
    always(
        "right",
        on={"contender": "tgite"},
        table="Weak",
        id="weak-incumbent",
        text="The incumbent after 10^6 duels is the Condorcet winner in every run",
        paper=PROTOTYPE + "in all of 126 runs",
    ),
    better(
        "weak",
        "tgite",
        WSW,
        on={"matrix": SYNTHETIC, "n": [64, 256]},
        each=["matrix", "n"],
        table="Weak",
        id="weak-below-winner-stays",
        text="Weak regret is below that of WS-W on the flat and the cyclic matrix for N = 64 and 256",
        paper=PROTOTYPE + "WS-W / N 546 and > 1102 (flat), 325 and > 1285 (cyclic)",
    ),
    *(
        worse(
            "weak",
            "tgite",
            WSW,
            on={"matrix": matrices, "n": sizes},
            each=["matrix", "n"],
            table="Weak",
            id=f"weak-above-winner-stays-{name}",
            text=f"and above it {where}, where WS-W is at its best",
            paper=PROTOTYPE + figures,
        )
        for name, matrices, sizes, where, figures in (
            ("small", SYNTHETIC, [16], "at N = 16", "WS-W / N 46 (flat), 28 (cyclic)"),
            ("bradley-terry", ["bradley-terry"], NS, "under Bradley-Terry at each N", "WS-W / N 15 / 35 / 14"),
        )
    ),
    better(
        "weak",
        "tgite",
        "tree only",
        each=["matrix", "n"],
        table="Weak",
        report=True,
        id="weak-against-tree-only",
        text="Against a start from the tree alone, without identification",
        paper=PROTOTYPE + "/ N 160 / 207 / 595 (flat), 118 / 196 / 419 (cyclic), 55 / 61 / 85 (Bradley-Terry)",
    ),
    # 4: strong regret
    at_most(
        "exponent",
        "tgite",
        0.15,
        each=["matrix", "n"],
        table="Strong",
        id="strong-exponent",
        text="Strong regret grows from 10^5 to 10^6 duels with a local exponent of at most 0.15",
        paper="Abstract: strong regret O(N ln T); " + PROTOTYPE + ".05 to .08",
    ),
    *(
        at_least(
            column,
            "tgite",
            0.9,
            each=["matrix", "n"],
            table="Strong",
            report=True,
            id=f"strong-{column.replace('_', '-')}",
            text=f"R^2 of a straight line in ln T from {start} duels on",
            paper=PROTOTYPE + figures,
        )
        for column, start, figures in (("r2", "10^4", ".89 to .99"), ("r2_late", "10^5", ".96 to .99"))
    ),
    better(
        "strong",
        "tgite",
        RUCB,
        factor=1 / 2,
        each=["matrix", "n"],
        table="Strong",
        id="strong-within-two",
        text="Strong regret is within twice that of RUCB, or better, at N = 16 and 64",
        paper="The same order as specialists",
    ),
    better(
        "strong",
        "tgite",
        RUCB,
        each=["matrix", "n"],
        table="Strong",
        report=True,
        id="strong-against-rucb",
        text="Sign and size of the difference to RUCB",
        paper=PROTOTYPE + "strong regret / N of TG-ITE 60 / 47, 47 / 52, 25 / 26",
    ),
    better(
        "strong",
        "tgite",
        ["winner stays, strong", "no book"],
        each=["matrix", "n"],
        table="Strong",
        report=True,
        id="strong-against-others",
        text="The same against WS-S, and against TG-ITE that forgets its counts between rounds",
    ),
    # 5: both at once
    better(
        "weak",
        "joint",
        "weak",
        factor=1 / 1.25,
        each=["matrix", "n"],
        table="Joint",
        id="joint-weak",
        text="Naming the best arm with delta = 0.01 on the way costs at most 1.25 times the weak regret of the weak mode (0.05)",
        paper="A benign trade-off: identification and weak regret both O(N)",
    ),
    always(
        lambda rows: rows["joint"] == rows["bai"],
        table="Answers",
        id="joint-answers",
        text="The joint mode answers after exactly as many duels as identification alone, with the same seed",
    ),
    # real matrices
    at_most(
        "answer",
        "tgite, bai",
        1e6,
        on={"matrix": REAL},
        each="matrix",
        table="Real",
        report=True,
        id="real-answer",
        text="Duels to the answer (delta = 0.05) on 24 classifiers, 16 football clubs and the hard matrix",
    ),
    rate(
        lambda rows: rows["named_wrong"].astype(bool),
        "tgite, bai",
        at_most=0.1,
        on={"matrix": REAL},
        each="matrix",
        table="Real",
        report=True,
        id="real-error",
        text="and how often the answer is wrong",
    ),
    better(
        "weak",
        "tgite, weak",
        WSW,
        on={"matrix": REAL},
        each="matrix",
        table="Real",
        report=True,
        id="real-weak",
        text="Weak regret there against WS-W",
    ),
    better(
        "strong",
        "tgite, strong",
        RUCB,
        on={"matrix": REAL},
        each="matrix",
        table="Real",
        report=True,
        id="real-strong",
        text="Strong regret there against RUCB",
    ),
]
