"""What can be done to a run, one module a kind; `CAMPAIGNS` are all of them."""

from bench.campaigns import (
    caches,
    fulldisk,
    heads,
    inputs,
    journals,
    kills,
    limits,
    models,
    ownfiles,
    pairs,
    producers,
    servers,
    signals,
    silence,
    tokenizers,
)

CAMPAIGNS = [
    kills.CAMPAIGN,
    journals.CAMPAIGN,
    ownfiles.CAMPAIGN,
    ownfiles.STORES,
    fulldisk.CAMPAIGN,
    limits.CAMPAIGN,
    inputs.CAMPAIGN,
    models.CAMPAIGN,
    caches.CAMPAIGN,
    signals.CAMPAIGN,
    pairs.CAMPAIGN,
    producers.CAMPAIGN,
    heads.CAMPAIGN,
    tokenizers.CAMPAIGN,
    servers.CAMPAIGN,
    silence.CAMPAIGN,
]
