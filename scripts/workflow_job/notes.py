"""The notes in the shipped workflows: what an artist needs to know, in Markdown."""

from __future__ import annotations


def how_to(lead: str = "", share: str = "half", more: str = "") -> str:
    """For a graph with a Reuse Sampler that its text encoder is connected to.

    Args:
        lead, more: paragraphs before and after.
        share: how long the short probes take, in words that go before "as long as the run".
    """
    return _paragraphs(f"""
        {lead}

        **First run: a miss.** Computed in full, bit-identical to KSampler, and kept. Then five short probes of other
        prompts teach Carnator your model, which is what *clip* is connected for: once for each model and setting,
        {share} as long as the run.

        **From the second run on: hits.** Keep the seed, change a few words of the prompt and run. What they leave alone
        is taken from the earlier video.

        **A miss again?** The line on the sampler says why: another seed or setting, too many other words, or too much
        of the video would change. The video is KSampler's then, and kept for the next variation.

        {more}
    """)


def _paragraphs(text: str) -> str:
    """Without the line breaks and the indentation of the source; blank lines part paragraphs."""
    joined = (" ".join(part.split()) for part in text.split("\n\n"))
    return "\n\n".join(filter(None, joined))


ONE_NODE = "**One node of Carnator, in the place of KSampler, is all it takes.**"
EACH_LORA = "A LoRA and its strength are part of what must be equal: each keeps its own earlier videos."
COMPARE = """**Compare.** Give both samplers the same settings: a miss is then the same video twice. It costs both
        runs."""

TWO_STAGES = _paragraphs("""
    **First teach it your model (5 runs).** Run five times, each with another *noise_seed* of the first stage *and*
    another prompt. They are misses: computed in full, bit-identical to KSampler, and kept. The status counts until the
    sixth run.

    **From then on: hits.** Go back to one of these seeds, change a few words of its prompt and run. The second stage
    reuses only what its own first stage reused.

    **A miss again?** Each Apply says why, each Report what was measured. The video is KSampler's then, and kept for the
    next variation.
""")

CALIBRATE = _paragraphs("""
    **1. Choose limits.** Set the *mode* of the gate to *thresholds* and run some variations of a few scenes. The Report
    shows what was measured: set the numbers above those of small changes and below those of unrelated prompts. Then
    keep all settings, since a certificate speaks of one setting.

    **2. Collect.** Keep the seed of a scene, change words, run. Say of every hit in the sidebar tab Carnator whether it
    is what you asked for. It takes some 60 scenes; ten variations of one scene count once.

    **3. Test once.** Switch *save* of Carnator Calibrate on and run. It shows the certificate, or what is missing.

    **4. Use it.** Set the *mode* of the gate to *certified*: the certificate decides, and the status says so. Later
    verdicts can make it lapse.
""")

FULL_CONTROL = _paragraphs("""
    **Every setting of Carnator.** As it is, the first run is a miss that also teaches Carnator your model (half as long
    as the run); hits come from the second run on. Keep the seed, change a few words.

    **Cache Store**: which store, and how large. A name for each project keeps projects apart.

    **Early Probe**: how many steps run before the decision. *any seed*: a new seed varies the nearest earlier video.

    **Compatibility Gate**: what is close enough. *certified*: a certificate decides (workflow `calibrate`); without one
    half of the usual limits, on the scale of your model. *thresholds*: the numbers as they stand; those here suit the
    demo model.

    **Reuse Sampler**: what a hit computes. More care: lower *region_threshold* and *hold_threshold*, and
    *guidance_interval* 1. With *assist* what cannot be a hit may go faster, but is not bit-identical to KSampler then.
    *audit_percent* computes some hits once more in full, to compare.

    **Report**: what was decided and measured, against what is allowed, and where the video was computed.
""")
