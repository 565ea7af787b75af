"""Settings of a model's files changed, one or two at a time: the same vectors as sentence-transformers from the same
directory, one text at a time, or a refusal in words."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.campaigns.caches import FAMILIES, NEAR, ours, theirs
from bench.campaigns.tally import Campaign, Report, Room

CONFIG = "config.json"
MODULES, POOLING = "modules.json", "1_Pooling/config.json"
SENTENCE, PROMPTS = "sentence_bert_config.json", "config_sentence_transformers.json"
TOP = "sentence_transformers"
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{TOP}.models.Normalize"}
ODD = (None, 0, -1, 1, 7, 1.5, "x", "", True, False, [], {}, [1])
VALUES: dict[str, dict[str, tuple[Any, ...]]] = {
    CONFIG: {
        "hidden_act": ("relu", "gelu", "gelu_new", "silu", "tanh", "gelu_pytorch_tanh", "nothing"),
        "layer_norm_eps": (1e-12, 1e-5, 0.1, 0, "1e-5", None),
        "position_embedding_type": ("absolute", "relative_key", "relative_key_query", "none"),
        "is_decoder": (True, False),
        "is_causal": (True, False),
        "use_cache": (True, False),
        "num_attention_heads": (2, 4, 8, 3, 0),
        "num_hidden_layers": (1, 2, 3),
        "hidden_dropout_prob": (0.0, 0.5),
        "attention_probs_dropout_prob": (0.0, 0.5),
        "pad_token_id": (0, 1, 2, None, 999),
        "type_vocab_size": (1, 2, 3),
        "max_position_embeddings": (8, 24, 26, 512),
        "torch_dtype": ("float16", "bfloat16", "float32"),
        "dtype": ("float16", "bfloat16", "float32"),
        "tie_word_embeddings": (True, False),
        "chunk_size_feed_forward": (0, 4),
        "add_cross_attention": (True, False),
        "architectures": (["BertForMaskedLM"], ["Qwen3ForCausalLM"], [], None, ["X"]),
        "auto_map": ({"AutoModel": "x.X"}, {"AutoConfig": "x.X", "AutoModel": "x.Y"}),
        "transformers_weights": ("other.safetensors", "model.safetensors"),
        "model_type": ("bert", "roberta", "mpnet", "x"),
        "output_hidden_states": (True, False),
        "return_dict": (True, False),
        "rope_theta": (10.0, 10000.0),
        "rope_parameters": ({"rope_type": "default", "rope_theta": 10.0}, {"rope_type": "linear", "factor": 4.0}),
        "sliding_window": (2, 4096, None),
        "use_sliding_window": (True, False),
        "rms_norm_eps": (1e-6, 0.1),
        "head_dim": (4, 8, 16),
        "problem_type": ("regression", "x"),
        "quantization_config": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, {}),
    },
    MODULES: {
        "normalize": (NORMALIZE, {**NORMALIZE, "type": f"{TOP}.sentence_transformer.modules.Normalize"}),
        "dropout": ({**NORMALIZE, "path": "2_Dropout", "type": f"{TOP}.models.Dropout"},),
        "twice": ({"idx": 2, "name": "2", "path": "1_Pooling", "type": f"{TOP}.models.Pooling"},),
        "other": tuple(
            {**NORMALIZE, "path": "2_Other", "type": f"{TOP}.models.{kind}"}
            for kind in ("CNN", "LSTM", "BoW", "WordWeights", "Dense", "LayerNorm", "Router", "Nothing")
        ),
        "kwargs": (["task"], []),
    },
    POOLING: {
        **dict.fromkeys(
            ("pooling_mode_cls_token", "pooling_mode_max_tokens", "pooling_mode_lasttoken"), (True, False, 1)
        ),
        **dict.fromkeys(("pooling_mode_mean_tokens", "pooling_mode_weightedmean_tokens"), (True, False, None)),
        "pooling_mode_mean_sqrt_len_tokens": (True,),
        "pooling_mode": ("cls", "mean", "max", ["cls", "mean"], "lasttoken", "median", [], "weightedmean", None),
        "include_prompt": (True, False),
        "word_embedding_dimension": (32, 16, None),
        "embedding_dimension": (32, 64),
    },
    SENTENCE: {
        "max_seq_length": (8, 12, 24, 512, None, 0, -1, "12"),
        "do_lower_case": (True, False, None, "yes"),
        "model_args": ({"add_pooling_layer": False}, {"hidden_act": "relu"}, {"attn_implementation": "eager"}),
        "config_args": ({"hidden_act": "relu"}, {"num_hidden_layers": 1}, {"use_cache": False}),
        "config_kwargs": ({"layer_norm_eps": 0.1},),
        "tokenizer_args": ({"model_max_length": 9}, {"padding_side": "left"}, {"do_lower_case": False}),
        "processing_kwargs": (
            {"text": {"max_length": 6}},
            {"text": {"padding": True}},
            {"common": {"truncation": False}},
        ),
        "transformer_task": ("feature-extraction", "fill-mask", "text-generation"),
        "module_output_name": ("token_embeddings", "sentence_embedding"),
        "modality_config": ({"text": {"method": "forward", "method_output_name": "last_hidden_state"}}, {}),
        "unpad_inputs": (True, False, None),
        "query_length": (4,),
        "query_expansion": (True,),
    },
    PROMPTS: {
        "prompts": (
            *(
                {"document": "so : "},
                {"passage": "it : "},
                {"query": "what : ", "document": ""},
                {},
                {"search_document": "x "},
            ),
            *({"document": None}, {"document": 5}, None, {"document": "so : ", "passage": "it : "}),
        ),
        "default_prompt_name": ("document", "query", "passage", "none", None),
        "truncate_dim": (8, 16, 32, 64, None, 0, "8"),
        "similarity_fn_name": ("cosine", "dot", "euclidean", "x"),
        "model_type": ("SentenceTransformer", "SparseEncoder", "CrossEncoder", "X"),
        "requirements": ({"transformers": ">=99"}, {"torch": ">=1"}, {}),
        "__version__": ({"sentence_transformers": "99.0"}, {}),
    },
}
PLACES = [(file, key) for file, keys in VALUES.items() for key in keys]


def change(model: Path, file: str, key: str, value: object) -> None:
    """Say it in a file, whether that is there or not."""
    place = next(model.rglob("1_Pooling")) / CONFIG if file == POOLING else model / file
    document = json.loads(place.read_text()) if place.is_file() else {}
    if isinstance(document, list) and key == "kwargs":
        document[0]["kwargs"] = value
    elif isinstance(document, list):
        document.append(value)
        (model / str(value["path"])).mkdir(exist_ok=True)  # type: ignore[index]
    else:
        document[key] = value
    place.write_text(json.dumps(document))


def _changes(room: Room, model: Path) -> Iterator[tuple[str, str, object]]:
    """One place after the other, and now and then a second one by chance."""
    has = [each for each in PLACES if (model / MODULES).is_file() or each[0] not in (MODULES, POOLING)]
    for file, key in [has[room.number % len(has)], *room.rng.sample(has, room.rng.random() < 0.2)]:
        values = VALUES[file][key]
        odd = room.rng.random() < 0.1 and file != MODULES
        yield file, key, room.rng.choice(ODD if odd else values)


def trial(room: Room) -> Report:
    """Compute with one model of which one setting or two were changed."""
    family = room.rng.choice(list(FAMILIES))
    model, report = room.place / "model", Report()
    FAMILIES[family](model)
    changed = list(_changes(room, model))
    for each in changed:
        change(model, *each)
    found, refusal = ours(str(model))
    told = f"{family}, {'; '.join(f'{file} {key} = {value!r}' for file, key, value in changed)}"
    try:
        wanted = theirs(model)
    except Exception as error:  # whatever it raises: it has no vectors to compare with
        report.tried.update(
            ["changed settings", "refused by sentence-transformers too" if refusal else "computed alone"]
        )
        report.wrong += [f"{told}: computed, sentence-transformers raises {error}"[:400]] * (found is not None)
        return report
    report.tried.update(["changed settings", changed[0][0], "refused" if refusal else "equal"])
    if found is not None:
        near = float((found * wanted).sum(axis=1).min()) if found.shape == wanted.shape else -1.0
        report.wrong += [f"{told}: a cosine of {near:.4f}"] * (not near >= NEAR)
    elif len(refusal.splitlines()[0]) > 600:
        report.wrong.append(f"{told}: refused at length")
    return report


CAMPAIGN = Campaign("settings", trial, 350, "settings of a model's JSON files changed: the same vectors, or a refusal")
