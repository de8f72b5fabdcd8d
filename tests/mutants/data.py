"""Faults in sources, labels, targets, views and mixing."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    # The order of weighted samples.
    Mutant(
        "data/order/weighted.py",
        'np.searchsorted(ends, points, side="right")',
        'np.searchsorted(ends, points, side="left")',
        "data/order/test_weighted.py",
    ),
    Mutant(
        "data/order/weighted.py",
        'tf.searchsorted(table, points, side="right"',
        'tf.searchsorted(table, points, side="left"',
        "data/order/test_weighted.py",
    ),
    # Class folders and annotations.
    Mutant(
        "data/catalog/labels.py",
        "min(round(len(distinct) * share), len(distinct) - 1)",
        "round(len(distinct) * share)",
        "data/sources/test_folders.py",
    ),
    # Entries: used for training, for tests, or counted.
    Mutant(
        "data/catalog/class_folders.py",
        "if contents.identity == other:",
        "if folder == str(but):",
        "data/catalog/test_class_folders.py",
    ),
    Mutant("data/catalog/splits.py", "if rule.level is None:", "if False:", "data/catalog/test_splits.py"),
    Mutant(
        "data/catalog/splits.py",
        'if rule.role == "train" or rule.has_share:',
        'if rule.role == "train":',
        "data/catalog/test_splits.py",
    ),
    Mutant(
        "data/catalog/splits.py",
        'split == "train" or bool(kids[name]) or "test" in rule.labelled',
        "True",
        "data/catalog/test_splits.py",
    ),
    Mutant(
        "data/catalog/splits.py",
        "is_clear = not classes or",
        "is_clear = True or",
        "data/catalog/test_splits.py",
    ),
    Mutant("data/catalog/splits.py", "if name not in used:", "if not used:", "data/catalog/test_splits.py"),
    Mutant(
        "data/sources/data_files.py",
        "return FilesOf(_without(others, files.train), [], left_out)",
        "return FilesOf(files.train, [], left_out)",
        "data/sources/test_trees.py",
    ),
    Mutant(
        "data/sources/packed/archive.py",
        'if split == "test" and not self._test_apart:',
        "if False:",
        "data/sources/test_trees.py",
    ),
    Mutant(
        "data/sources/folders.py",
        'if chosen.paths and split == "test" and not apart:',
        "if False:",
        "data/sources/test_trees.py",
    ),
    Mutant("data/sources/tables/memory.py", "if len(members) > 1:", "if False:", "data/sources/tables/test_memory.py"),
    Mutant(
        "data/catalog/splits.py",
        "if any(len(names) > shared for names in paths) else max(shared - 1, 0)",
        "",
        "data/catalog/test_splits.py",
    ),
    Mutant("data/annotations/yolo.py", '("val", "test")', '("test", "val")', "data/annotations/test_yolo.py"),
    Mutant(
        "data/annotations/yolo.py", "min(numbers) < -TOLERANCE", "min(numbers) < 0", "data/annotations/test_yolo.py"
    ),
    Mutant(
        "data/sources/tables/coco.py", "np.where(low == high, high, -1)", "high", "data/sources/tables/test_coco.py"
    ),
    # What a file states twice, and what its values mean.
    Mutant(
        "data/sources/packed/examples.py",
        'only(getattr(features[name], f"{kind}_list").value, name)',
        'next(iter(getattr(features[name], f"{kind}_list").value), None)',
        "data/sources/test_only.py",
    ),
    Mutant(
        "data/sources/packed/examples.py",
        "edge.float_list.value or edge.int64_list.value",
        "edge.float_list.value",
        "data/sources/test_boxes_alike.py",
    ),
    Mutant(
        "data/sources/packed/tfrecords.py",
        'if not in_pixels(rows.boxes, "auto", lambda box: rows.names[int(rows.box_images[box])]):',
        "if True:",
        "data/sources/test_boxes_alike.py",
    ),
    Mutant(
        "data/sources/packed/webdataset.py",
        'only(with_boxes, "boxes", remedy) or ""',
        '(with_boxes or [""])[-1]',
        "data/sources/test_only.py",
    ),
    Mutant(
        "data/sources/packed/webdataset.py",
        "sorted(parts[False] & parts[True])",
        "sorted(parts[False] & {*()})",
        "data/sources/test_only.py",
    ),
    Mutant(
        "data/sources/tables/columns.py",
        "if same is not None and not same.all():",
        "if False:",
        "data/sources/test_only.py data/sources/tables/test_columns.py",
    ),
    Mutant(
        "data/sources/tables/formats.py",
        "newlines_in_values=True",
        "newlines_in_values=False",
        "data/sources/test_only.py",
    ),
    Mutant(
        "data/sources/catalogs.py",
        "if 2 * len(swapped) > len(rows.boxes):",
        "if False:",
        "data/sources/test_boxes_alike.py",
    ),
    Mutant(
        "data/catalog/labels.py",
        'BLANKS.sub("", composed_form(name))',
        'BLANKS.sub("", name)',
        "data/sources/test_only.py",
    ),
    Mutant("data/catalog/labels.py", "numbers.get(composed_form(name), BY", "numbers.get(name, BY", "data/catalog"),
    Mutant("data/annotations/voc.py", 'composed_form(texts["name"])', 'texts["name"]', "data/catalog/test_labels.py"),
    Mutant(
        "data/annotations/voc.py",
        "if texts.setdefault(tag, text) != text:",
        "if texts.setdefault(tag, text) is None:",
        "data/annotations/test_voc.py",
    ),
    Mutant(
        "data/annotations/masks.py",
        "if picture.mode ==",
        "if False and picture.mode ==",
        "data/annotations/test_masks.py",
    ),
    Mutant(
        "data/images/by_pillow.py",
        "Image.Image.getexif(image)",
        "Image.Exif()",
        "data/images/test_by_pillow.py",
    ),
    # Caches.
    Mutant("data/sources/cache.py", "for kind in KINDS:", "for kind in KINDS[:1]:", "data/sources/test_cache.py"),
    Mutant(
        "data/sources/remote/source.py",
        "forget(self.catalog.files_of(item))",
        "forget(self.catalog.files_of(item)[:1])",
        "data/sources/remote/test_source.py",
    ),
    Mutant(
        "data/sources/remote/source.py",
        "forget(self.catalog.files_of(item))",
        "forget(self.catalog.files_of(item)[1:])",
        "data/sources/remote/test_source.py",
    ),
    # Class folders.
    Mutant(
        "data/catalog/class_folders.py",
        "rule.classes is not None and composed_form(name) not in rule.classes",
        "False",
        "data/sources/test_folders.py",
    ),
    Mutant(
        "data/catalog/class_folders.py",
        "if missing and others and",
        "if False and",
        "data/sources/test_folders.py",
    ),
    # Tables, tar shards, TFRecords and archives.
    Mutant(
        "data/sources/tables/where.py",
        "for place in np.flatnonzero(in_split & in_other)[:1].tolist():",
        "for place in list[int]():",
        "data/sources/tables/test_where.py",
    ),
    Mutant(
        "data/sources/tables/where.py",
        "if in_split[place] and name in of_others]",
        "if in_split[place] and in_other[place]]",
        "data/sources/tables/test_where.py",
    ),
    Mutant(
        "data/sources/tables/where.py",
        "int((~in_split & ~in_other).sum())",
        "int((~in_split).sum())",
        "data/sources/tables/test_where.py",
    ),
    Mutant(
        "data/sources/tables/where.py",
        'return self.others is None or self.split == "train"',
        "return True",
        "data/sources/tables/test_where.py",
    ),
    Mutant(
        "data/sources/tables/table.py",
        "if self.about.test_share is None or not files.test:",
        "if not files.test or True:",
        "data/sources/tables/test_coco.py",
    ),
    Mutant(
        "data/sources/packed/webdataset.py",
        "if len(endings) > 1:",
        "if False:",
        "data/sources/packed/test_webdataset.py",
    ),
    Mutant(
        "data/sources/tables/columns.py",
        "return rows.select(first)",
        "return rows.select(np.arange(len(first)))",
        "data/sources/tables/test_columns.py",
    ),
    Mutant(
        "data/sources/tables/table.py",
        'if split == "test" and source.test_images is not None',
        "if source.test_images is not None",
        "data/sources/tables/test_coco.py",
    ),
    Mutant(
        "data/sources/packed/webdataset.py",
        "text = label_text(label) if tags is None else None",
        "text = label_text(label)",
        "data/sources/packed/test_webdataset.py",
    ),
    Mutant(
        "data/sources/packed/tfrecords.py",
        "(labels < 0) | (labels >= len(classes))",
        "(labels < 0) | (labels > len(classes))",
        "data/sources/packed/test_tfrecords.py",
    ),
    Mutant(
        "data/sources/packed/archive.py",
        "most = max(likeness.values(), default=0)",
        "most = min(likeness.values(), default=0)",
        "data/sources/packed/test_archive.py",
    ),
    # Targets, views and mixing.
    Mutant("data/annotations/masks.py", "VOID = 255", "VOID = 0", "data/annotations/test_masks.py"),
    Mutant(
        "data/targets/boxes.py",
        "visible >= min_visible * area",
        "visible > min_visible * area",
        "data/targets/test_boxes.py",
    ),
    Mutant(
        "data/targets/labels.py",
        "if (counts > most).any():",
        "if (counts >= most).any():",
        "data/targets/test_labels.py",
    ),
    Mutant("config/data.py", "self.seed + number * SEED_STRIDE", "self.seed + number", "data/test_views.py"),
    Mutant(
        "data/images/mix.py",
        "tf.minimum(middle + half, shape) - corner",
        "tf.minimum(2 * half, shape - corner)",
        "data/images/test_mix.py",
    ),
    Mutant(
        "data/pipeline.py",
        "return data.training and data.config.mix is not None",
        "return data.config.mix is not None",
        "data/test_mix.py",
    ),
    # Batches that several calls write.
    Mutant("data/images/parts.py", "of=parts", "of=1", "data/test_pipeline.py"),
    Mutant("data/images/parts.py", "rows = count * native().arrive(written, of=parts)", "rows = count"),
    Mutant("data/pipeline.py", "each[visits.first_crop == 0]", "each[visits.first_crop >= 0]"),
    Mutant("native/ops/crops.c", "first = span[0], end;", "first = 0, end;", "data/images/test_decode.py"),
    Mutant("native/ops/augment.c", "crop += span[0] *", "crop += 0 *", "data/images/test_augment.py"),
    # Lengths, and what a run shares with its continuation.
    Mutant(
        "data/crop_counts.py",
        "rest.count(split.world.rank, split.order.count)",
        "rest.count(split.world.rank, split.order.count) - 1",
        "data/test_crop_counts.py",
    ),
    Mutant("data/contract.py", "return _digest(texts, *(", "return _digest(*(", "data/test_contract.py"),
    Mutant("data/crop_counts.py", "None if (most == UNKNOWN).any() else", "", "data/test_crop_counts.py"),
    # What a table's rows, archives and a redirection may mean.
    Mutant("data/sources/tables/columns.py", "        if one != other:", "        if False:"),
    Mutant("data/sources/catalogs.py", "(numbers[:, 1:] == numbers[:, :-1]).any() and", "False and"),
    Mutant("data/catalog/class_folders.py", "if levels[low] != levels[high]:", "if False:", "data/sources/packed"),
    Mutant(
        "data/sources/remote/http_client.py",
        "        self._headers, self._moved = {}, False\n",
        "",
        "data/sources/remote/test_http_client.py",
    ),
)
