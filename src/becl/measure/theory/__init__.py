"""BeCL's two theorems and its decomposition, checked where the information is known.

Yang et al., "Behavior Contrastive Learning for Unsupervised Skill Discovery", ICML 2023, Section 3
and Appendix A. With two views S1, S2 of a skill Z, features f on the unit sphere of R^d and the
contrastive loss L of one positive among N candidates,

    Theorem 1   log N − L ≤ I(S1; S2)
    Theorem 2   L − log(N − 1) → −E[f(S1)·f(S2)]/κ − Ĥ − log c_d(1/κ)
    Eq. 4       I(S1; S2) = ½[I(S1; Z) + I(S2; Z)] + I(S1; S2 | Z)
                            − ½[I(S1; Z | S2) + I(S2; Z | S1)]

each written in the form that holds, Theorem 1 for negatives drawn from p(s) independently of the
anchor. ``docs/theory.md`` says where the printed forms differ, and gives a bound for the negatives
that the paper draws. Information is in nats; exact quantities are NumPy, sampled ones JAX.

    information     Eq. 4
    bound           Theorem 1
    limit           Theorem 2
    checks          all of these, with the settings quoted in ``docs/theory.md``
    summary         the checks' numbers as text; `becl.views.figures.theory` draws them
    statements      which statements hold
"""
