"""Folders of pictures: classes from folders or from a file, one size, and what is said about mistakes."""

import numpy as np
import pytest

from diffclust.tables import read_table

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def save(tmp_path):
    """Saves a picture of one grey or one colour, and returns its folder."""

    def save_picture(name, colour, size=(12, 10)):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L" if isinstance(colour, int) else "RGB", size, colour).save(path)
        return tmp_path / "photos"

    return save_picture


def test_folders_name_the_classes_and_other_pictures_have_none(save):
    for name, grey in (
        ("cat/1.png", 10),
        ("cat/2.png", 20),
        ("dog/1.png", 30),
        ("3.png", 40),
        ("unlabelled/4.png", 50),
    ):
        photos = save(name, grey)
    save(".cache/5.png", 60)
    (photos / "notes.txt").write_text("no picture")
    table = read_table(photos)
    assert table.row_names == ["3.png", "cat/1.png", "cat/2.png", "dog/1.png", "unlabelled/4.png"]
    assert [table.class_names[label] if label >= 0 else None for label in table.labels] == [
        *(None, "cat", "cat", "dog", None)
    ]
    assert table.features.dtype == np.uint8
    assert table.features[:, 0, 0].tolist() == [40, 10, 20, 30, 50]
    assert table.features.shape == (5, 10, 12)
    assert table.sentences == ["Pictures are read in greys, 12 x 10 pixels."]


def test_one_picture_with_colours_makes_all_have_them(save):
    save("a.png", 10)
    table = read_table(save("b.png", (200, 100, 0)))
    assert table.features.shape == (2, 3, 10, 12)
    assert table.features[:, :, 0, 0].tolist() == [[10, 10, 10], [200, 100, 0]]


def test_pictures_get_the_median_size_at_most_64_pixels_or_the_one_asked_for(save):
    for name, size in (("a.png", (20, 10)), ("b.png", (40, 30)), ("c.png", (30, 20))):
        photos = save(name, 1, size)
    assert read_table(photos).features.shape == (3, 20, 30)
    assert read_table(photos, image_size=15).features.shape == (3, 10, 15)
    for name in ("d.png", "e.png", "f.png", "g.png"):
        save(name, 1, (640, 320))
    assert read_table(photos).features.shape == (7, 32, 64)


def test_new_pictures_get_the_size_and_colours_of_the_first_ones(save, tmp_path):
    encoding = read_table(save("a.png", 10) and save("b.png", 20)).encoding
    (tmp_path / "new").mkdir()
    Image.new("RGB", (50, 50), (7, 7, 7)).save(tmp_path / "new" / "x.jpg")
    table = read_table(tmp_path / "new", at_least=1, encoding=encoding)
    assert table.features.shape == (1, 10, 12)
    assert abs(int(table.features[0, 0, 0]) - 7) <= 1
    with pytest.raises(ValueError, match="is a folder of pictures, but the run was made from another form of data"):
        read_table(tmp_path / "new", at_least=1, encoding={"kind": "columns"})


@pytest.mark.parametrize("lines", ["file,label\na.png,cat\nb,dog\n", "a;cat\nb.png;dog\n", "a.png\tcat\nb.png\tdog"])
def test_a_file_of_labels_names_some_pictures(lines, save, tmp_path):
    for name in ("b.png", "c.png", "a.png"):
        photos = save(name, 1)
    (tmp_path / "labels.csv").write_text(lines)
    table = read_table(photos, str(tmp_path / "labels.csv"))
    assert [table.class_names[label] if label >= 0 else None for label in table.labels] == ["cat", "dog", None]


def test_pictures_of_16_bits_and_turned_ones(save, tmp_path):
    photos = save("flat/a.png", 0, (4, 8))
    levels = np.linspace(0, 60_000, 32).reshape(8, 4).astype(np.uint16)
    Image.fromarray(levels).save(photos / "flat" / "b.png")
    pixels = read_table(photos, image_size=8).features[1]
    assert (pixels.min(), pixels.max()) == (0, 255)
    turned = Image.new("L", (8, 4), 0)
    turned.paste(255, (0, 0, 4, 4))  # the left half is white; turned, the upper one
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(photos / "flat" / "c.png", exif=exif)
    pixels = read_table(photos, image_size=8).features[2]
    assert (pixels[1].min(), pixels[-2].max()) == (255, 0)


def test_mistakes_are_named(save, tmp_path):
    photos = save("a.png", 1)
    save("b.png", 1)
    (tmp_path / "labels.csv").write_text("file,label\na.png,cat\nz.png,dog\n")
    with pytest.raises(ValueError, match=r"line 3: .* has no picture 'z.png'. It has a.png, b.png"):
        read_table(photos, str(tmp_path / "labels.csv"))
    (tmp_path / "labels.csv").write_text("cat\n\ndog\n")
    with pytest.raises(ValueError, match="line 1: expected a file name and a label, got 'cat'"):
        read_table(photos, str(tmp_path / "labels.csv"))
    with pytest.raises(ValueError, match=r"labels='kind': .* Put pictures into folders named by their class"):
        read_table(photos, "kind")
    (photos / "c.png").write_bytes((photos / "a.png").read_bytes()[:40])
    with pytest.raises(ValueError, match=r"c\.png cannot be read as a picture"):
        read_table(photos)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"has no \.npy files and no pictures"):
        read_table(tmp_path / "empty")
