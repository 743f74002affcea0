"""Structure and arrays of the buffers of delayed controls."""

import mujoco
import numpy as np

from mujoco_torch._src.structure.arrays import Part, items, select

LINEAR, CUBIC = 1, 2  # how a buffer is interpolated; 0 holds the sample before


def histories(mjm: mujoco.MjModel) -> Part:
    """Where the cursor, the times and the values of each delayed control are in the state ``history``.

    C's buffer of an actuator with n samples of k controls: a number for the user, the cursor (place of the newest
    sample), n times, n times k values. Tables are ``[slot, control]``; buffers shorter than the longest are padded.
    """
    counts = mjm.actuator_history[:, 0]
    kept = [i for i in range(mjm.nactuator) if counts[i] > 0]
    static = dict(has_history=bool(kept), delayed=bool(mjm.actuator_delay.any()))
    if not kept:
        return static, {}
    channels = [(i, k) for i in kept for k in range(mjm.actuator_ctrlnum[i])]
    slots = int(counts.max())
    own = np.array([i for i, _ in channels])
    kind = mjm.actuator_history[own, 1]
    delay = mjm.actuator_delay[own]
    ctrl = np.array([mjm.actuator_ctrladr[i] + k for i, k in channels])
    undelayed = np.ones(mjm.nu)
    undelayed[ctrl[delay != 0]] = 0.0

    times, values, following = [], [], []
    for slot in range(slots):
        for channel, (i, k) in enumerate(channels):
            n, start = counts[i], mjm.actuator_historyadr[i] + 2
            inside = slot < n
            times.append(start + slot if inside else -1)
            values.append(start + n + slot * mjm.actuator_ctrlnum[i] + k if inside else -1)
            following.append((slot + 1) % n * len(channels) + channel if inside else -1)
    cursor = mjm.actuator_historyadr[own] + 1
    first = np.array(
        [k == 0 for _, k in channels]
    )  # one channel of each actuator writes what all of them share
    changed = np.array([t for t in (*times, *values, *cursor) if t >= 0])
    untouched = np.ones(mjm.nhistory)
    untouched[changed] = 0.0
    arrays = dict(
        history_ctrl=select(ctrl, mjm.nu),
        history_delayed=select(np.where(delay != 0, ctrl, -1), mjm.nu),
        history_undelayed=items(undelayed),
        history_cursor=select(cursor, mjm.nhistory),
        history_times=select(times, mjm.nhistory),
        history_values=select(values, mjm.nhistory),
        history_next=select(following, slots * len(channels)),
        history_new_cursor=select(np.where(first, cursor, -1), mjm.nhistory),
        history_new_times=select(np.where(np.tile(first, slots), times, -1), mjm.nhistory),
        history_untouched=items(untouched),
        history_slot=np.arange(slots, dtype=float)[:, None, None],
        history_used=(np.arange(slots)[:, None] < counts[own]).astype(float)[..., None],
        history_count=items(counts[own]),
        history_delay=items(delay),
        history_linear=items(kind == LINEAR),
        history_cubic=items(kind == CUBIC),
    )
    return static | dict(history_has_cubic=bool((kind == CUBIC).any())), arrays
