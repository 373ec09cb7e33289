"""Slow, loop-only oracles in plain Python floats, written from the papers and importing nothing of the library.

Episodes are given flat, as in the library: `rewards` of all steps, `lengths` of all episodes, a group id per episode.
"""

import math


def mean(numbers):
    return math.fsum(numbers) / len(numbers)


def std(numbers, correction=0):
    middle = mean(numbers)
    return math.sqrt(math.fsum((x - middle) ** 2 for x in numbers) / (len(numbers) - correction))


def split(flat, lengths):
    """Cut a flat list into one list per episode."""
    pieces, start = [], 0
    for length in lengths:
        pieces.append(list(flat[start : start + length]))
        start += length
    return pieces


def joined(pieces):
    return [x for piece in pieces for x in piece]


# Returns (Sutton and Barto 2018, eq. 3.8; Schulman et al. 2016, eq. 16).


def discounted_returns(rewards, lengths, discount):
    returns = []
    for episode in split(rewards, lengths):
        for t in range(len(episode)):
            terms = [discount ** (k - t) * episode[k] for k in range(t, len(episode))]
            returns.append(math.fsum(terms))
    return returns


def generalized_advantages(rewards, values, final_values, lengths, terminated, discount, gae_lambda):
    pieces = []
    episodes = zip(split(rewards, lengths), split(values, lengths), final_values, terminated, strict=True)
    for reward, value, final_value, has_terminated in episodes:
        advantage, reversed_advantages = 0.0, []
        for t in reversed(range(len(reward))):
            after_last = 0.0 if has_terminated else final_value
            next_value = value[t + 1] if t + 1 < len(reward) else after_last
            error = reward[t] + discount * next_value - value[t]
            advantage = error + discount * gae_lambda * advantage
            reversed_advantages.append(advantage)
        pieces.append(reversed_advantages[::-1])
    return joined(pieces)


# Advantages.


def members(group_ids, group):
    return [i for i in range(len(group_ids)) if group_ids[i] == group]


def group_z_scores(scores, group_ids, epsilon=1e-4, correction=0, scale="group"):
    advantages = []
    for i in range(len(scores)):
        group = [scores[j] for j in members(group_ids, group_ids[i])]
        centred = scores[i] - mean(group)
        if scale == "none":
            advantages.append(centred)
            continue
        spread = group if scale == "group" else scores
        equal = max(group) == min(group)
        advantages.append(0.0 if equal else centred / (std(spread, correction) + epsilon))
    return advantages


def leave_one_out_advantages(scores, group_ids):
    advantages = []
    for i in range(len(scores)):
        others = [scores[j] for j in members(group_ids, group_ids[i]) if j != i]
        advantages.append(scores[i] - mean(others))
    return advantages


def process_supervision_advantages(
    rewards, lengths, group_ids, discount=1.0, epsilon=1e-4, correction=0, reward_mask=None
):
    episodes = split(rewards, lengths)
    masks = split([True] * len(rewards) if reward_mask is None else reward_mask, lengths)
    standardised = []
    for i in range(len(episodes)):
        pool = []
        for j in members(group_ids, group_ids[i]):
            pool += [r for r, given in zip(episodes[j], masks[j], strict=True) if given]
        equal = max(pool) == min(pool)
        for r, given in zip(episodes[i], masks[i], strict=True):
            if not given or equal:
                standardised.append(0.0)
            else:
                standardised.append((r - mean(pool)) / (std(pool, correction) + epsilon))
    return discounted_returns(standardised, lengths, discount)


def timestep_leave_one_out_advantages(rewards, lengths, group_ids, discount, normalize=True):
    to_go = split(discounted_returns(rewards, lengths, discount), lengths)
    advantages = []
    for i in range(len(lengths)):
        others = [to_go[j] for j in members(group_ids, group_ids[i]) if j != i]
        for t in range(lengths[i]):
            living = [other[t] for other in others if t < len(other)]
            advantages.append(to_go[i][t] - mean(living if living else joined(others)))
    if not normalize:
        return advantages
    if normalize == "timestep":
        return divided_per_timestep(advantages, lengths, group_ids)
    spread = std(advantages)
    return [a / spread if spread > 0 else 0.0 for a in advantages]


def divided_per_timestep(advantages, lengths, group_ids):
    pieces = split(advantages, lengths)
    floor = 0.1**2 * mean([a * a for a in advantages])
    scaled = []
    for i in range(len(lengths)):
        peers = [pieces[j] for j in members(group_ids, group_ids[i])]
        for t in range(lengths[i]):
            square = mean([peer[t] ** 2 for peer in peers if t < len(peer)]) + floor
            scaled.append(pieces[i][t] / math.sqrt(square) if square > 0 else 0.0)
    return scaled


# KL divergence (Schulman 2020; DeepSeekMath eq. 4).


def kl_k1(log_prob, reference_log_prob):
    return log_prob - reference_log_prob


def kl_k2(log_prob, reference_log_prob):
    return (log_prob - reference_log_prob) ** 2 / 2


def kl_k3(log_prob, reference_log_prob):
    ratio = math.exp(reference_log_prob - log_prob)
    return ratio - math.log(ratio) - 1


def softmax(logits):
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    return [w / math.fsum(weights) for w in weights]


def categorical_kl(logits, reference_logits):
    total = 0.0
    for p, q in zip(softmax(logits), softmax(reference_logits), strict=True):
        if p > 0:
            total += p * math.log(p / q) if q > 0 else math.inf
    return total


def gaussian_kl(mean, std, reference_mean, reference_std):
    """∫ π log(π/ref) in closed form: log(σ_ref/σ) + (σ² + (μ - μ_ref)²) / (2 σ_ref²) - ½, summed over dimensions."""
    total = 0.0
    for m, s, n, r in zip(mean, std, reference_mean, reference_std, strict=True):
        total += math.log(r / s) + (s**2 + (m - n) ** 2) / (2 * r**2) - 0.5
    return total


# Ratio and objectives (PPO eq. 7; GSPO section 4.1; dual clip, Ye et al. 2019; CISPO, MiniMax-M1 section 3.1).


def importance_ratio(log_probs, old_log_probs, lengths, level):
    log_ratios = [new - old for new, old in zip(log_probs, old_log_probs, strict=True)]
    if level != "step":
        pieces = []
        for episode in split(log_ratios, lengths):
            total = math.fsum(episode)
            pieces.append([total / len(episode) if level == "episode_mean" else total] * len(episode))
        log_ratios = joined(pieces)
    return [math.exp(min(x, 20.0)) for x in log_ratios]


def clip(x, low, high):
    return low if x < low else high if x > high else x


def clipped_surrogate(ratio, advantage, low, high, dual_clip=None):
    objective = min(ratio * advantage, clip(ratio, 1 - low, 1 + high) * advantage)
    if dual_clip is not None and advantage < 0:
        objective = max(objective, dual_clip * advantage)
    return objective


def cispo_objective(ratio, advantage, log_prob, high, low=None):
    return clip(ratio, 0.0 if low is None else 1 - low, 1 + high) * advantage * log_prob


# Diagnostics.


def clip_fractions(ratios, advantages, low, high):
    below = above = 0
    for ratio, advantage in zip(ratios, advantages, strict=True):
        below += ratio < 1 - low and advantage < 0
        above += ratio > 1 + high and advantage > 0
    return below / len(ratios), above / len(ratios)


def effective_sample_size(ratios):
    return math.fsum(ratios) ** 2 / (len(ratios) * math.fsum(r * r for r in ratios))


def explained_variance(values, returns):
    errors = [g - v for g, v in zip(returns, values, strict=True)]
    return 1 - std(errors) ** 2 / std(returns) ** 2


def living_peers(lengths, group_ids):
    groups = sorted(set(group_ids))
    means = []
    for t in range(max(lengths)):
        alive = [sum(lengths[i] > t for i in members(group_ids, group)) for group in groups]
        means.append(mean(alive))
    return means


def group_std(scores, group_ids):
    return [std([scores[i] for i in members(group_ids, group)]) for group in sorted(set(group_ids))]
