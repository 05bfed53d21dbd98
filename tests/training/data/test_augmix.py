"""RandAugment and AugMix: what they draw, and what they make of it. ``test_operations`` has the operations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax._system.errors import UserError
from calib_jax.training import data
from calib_jax.training.data import operations, per_image
from tests.losses.test_consistency import reference as divergence
from tests.training.small import draw_fast, short

RNG = np.random.default_rng(0)
LABELS, MASK = jnp.array([0, 1, 2, 1, 0, 2]), jnp.array([True] * 4 + [False] * 2)
PICTURES = {channels: RNG.integers(30, 200, (6, 9, 8, channels), dtype=np.uint8) for channels in (1, 3)}


def _augmented(name, images, key=0, **options):
  augment = data.build_augmentation(name, num_classes=3, **{"padding": 0, "flip": False, **options})
  return augment(jnp.asarray(images), LABELS, MASK, jax.random.key(key), None)


def _mixed(number, monkeypatch, operate, level=100, **options):
  """Mixes of a grey pixel, with ``operate`` in place of the operations; float64 ``[number]``."""
  monkeypatch.setattr(per_image, "operate", operate)
  image = jnp.full((number, 1, 1, 1), level, jnp.uint8)
  options = {"width": 3, "depth": -1, "severity": 3.0, "alpha": 1.0, **options}
  keys = jax.random.split(jax.random.key(0), number)
  mixed = jax.jit(lambda image, keys: per_image.mixed_chains(image, keys, **options))(image, keys)
  assert mixed.dtype == jnp.float32
  return np.asarray(mixed, np.float64).ravel()


@pytest.mark.slow
def test_randaugment_draws_every_operation_equally_often_and_both_directions():
  image = RNG.integers(0, 256, (17, 16, 3), dtype=np.uint8)
  apply = jax.jit(jax.vmap(operations.operate, (None, 0, 0)))
  indices = jnp.repeat(jnp.arange(14, dtype=jnp.int32), 2)
  amounts = jnp.stack([operations.amount(i, 0.5, jnp.float32(sign), image.shape, bits=8, shift=150 / 331)
                       for i, sign in zip(indices, (1, -1) * 14, strict=True)])
  candidates = np.asarray(apply(jnp.asarray(image), indices, amounts))
  assert len({x.tobytes() for x in candidates}) == 9 * 2 + 5
  keys = jax.random.split(jax.random.key(0), 700)
  result = np.asarray(jax.jit(lambda keys: data.randaugment(
    jnp.broadcast_to(jnp.asarray(image), (700, 17, 16, 3)), keys, num_ops=1, magnitude=15.0, padding=0, flip=False))(
      keys))
  # Compiled differently, an interpolated or blended level may be rounded to the next one.
  distance = np.stack([np.abs(result - candidate.astype(np.int16)).mean((1, 2, 3)) for candidate in candidates], 1)
  matches = distance < 0.1
  assert matches.any(1).all()
  each = (matches / matches.sum(1, keepdims=True)).sum(0).reshape(14, 2)
  assert np.abs(each.sum(1) - 50).max() < 4 * np.sqrt(50) and each.min() > 8


@pytest.mark.slow
def test_randaugment_applies_several_operations_after_a_crop(monkeypatch):
  """With an operation that adds 1, so that images say how many there were."""
  monkeypatch.setattr(per_image, "operate", lambda image, *_: image + jnp.uint8(1))
  images, keys = PICTURES[3], jax.random.split(jax.random.key(1), 6)
  run = jax.jit(data.randaugment, static_argnames=("num_ops", "padding", "flip"))
  plain = run(images, keys, num_ops=3, padding=0, flip=False)
  np.testing.assert_array_equal(plain, images + 3)
  as_floats = run(jnp.asarray(images, jnp.float32), keys, num_ops=3, padding=0, flip=False)
  assert as_floats.dtype == jnp.float32 and plain.dtype == np.uint8
  np.testing.assert_array_equal(as_floats, plain)
  crop_keys = jax.vmap(jax.random.split)(keys)[:, 0]
  np.testing.assert_array_equal(run(images, keys, num_ops=1, padding=2, flip=True),
                                data.crop_flip(jnp.asarray(images), crop_keys, padding=2) + jnp.uint8(1))


@pytest.mark.parametrize(("name", "channels"), [pytest.param("randaugment", 3, marks=pytest.mark.slow), ("augmix", 1)])
def test_an_image_depends_on_its_place_and_the_key_alone(name, channels):
  run = jax.jit(lambda images, key: _augmented(name, images, key).images)
  images = np.repeat(PICTURES[channels][:1], 6, 0)
  result, again, other = (np.asarray(run(images, key)) for key in (0, 0, 1))
  views = 3 if name == "augmix" else 1
  assert result.shape == (6 * views, 9, 8, channels) and result.min() >= 0 and result.max() <= 255
  np.testing.assert_array_equal(result, again)
  mixes = np.arange(len(result)) % views >= views - 2  # All but the clean ones.
  assert len({x.tobytes() for x in result[mixes]}) >= mixes.sum() - 2 and (result[mixes] != other[mixes]).any()
  changed = PICTURES[channels].copy()
  changed[:1] = images[0]
  changed[1:] = 7  # What else is in the batch does not matter, nor does it where it is padding.
  beside = np.asarray(run(changed, 0))
  np.testing.assert_array_equal(beside[:views], result[:views])


def test_augmix_gives_clean_images_two_mixes_and_the_divergence_of_three_predictions(monkeypatch):
  draw_fast(monkeypatch)
  images, batches = PICTURES[3], []

  def augmented(**options):
    batches.append(_augmented("augmix", images, **{"depth": 1, "width": 1, **options}))
    return batches[-1][:3]

  mixes, labels, mask = jax.jit(functools.partial(augmented, consistency=5.0))()
  np.testing.assert_array_equal(mixes[::3], images)
  np.testing.assert_array_equal(labels, LABELS)
  np.testing.assert_array_equal(mask, MASK)
  assert mixes.dtype == jnp.float32 and (mixes[1::3] != mixes[2::3]).any()
  logits = RNG.normal(size=(18, 4)).astype(np.float32)
  np.testing.assert_array_equal(batches[0].unmix(jnp.asarray(logits)), logits[::3])
  expected = 5 * divergence(logits.reshape(6, 3, 4).swapaxes(0, 1).astype(np.float64))
  np.testing.assert_allclose(batches[0].penalties(jnp.asarray(logits))["consistency"], expected, rtol=1e-4)
  alone = jax.jit(functools.partial(augmented, consistency=0.0))()[0]
  np.testing.assert_array_equal(alone, mixes[1::3])
  assert batches[1].penalties(jnp.asarray(logits[:6])) == {} and batches[1].unmix(5) == 5
  cropped = jax.jit(functools.partial(augmented, padding=2, flip=True))()[0]
  assert (np.asarray(cropped[::3]) != images).any()  # The clean images are cropped, as the mixes are.


@pytest.mark.slow
def test_shares_sum_to_1_and_have_their_distributions(monkeypatch):
  def constant(level):
    return lambda image, *_, **__: jnp.full_like(image, level)

  np.testing.assert_allclose(_mixed(50, monkeypatch, lambda image, *_, **__: image), 100, rtol=1e-6)
  share = _mixed(2000, monkeypatch, constant(200)) / 100 - 1  # m.
  assert share.min() >= -1e-6 and share.max() <= 1 + 1e-6
  quantiles = np.quantile(share, [0.1, 0.5, 0.9])
  np.testing.assert_allclose(quantiles, [0.1, 0.5, 0.9], atol=4 * 0.5 / np.sqrt(2000))  # Beta(1, 1) is uniform.
  share = _mixed(2000, monkeypatch, constant(200), alpha=0.2) / 100 - 1
  np.testing.assert_allclose(share.var(), 0.25 / 1.4, atol=0.02)  # Beta(a, a) has the variance 1 / (4 (2 a + 1)).


@pytest.mark.slow
def test_weights_of_chains_are_dirichlet(monkeypatch):
  """Each chain becomes 0 or 250 at random: the variance of the mixed chains follows from that of the weights."""
  def of_index(image, index, *_, **__):
    return jnp.where(index % 2 == 0, 0, 250).astype(jnp.uint8) * jnp.ones_like(image)

  mixed = _mixed(4000, monkeypatch, of_index, level=0, depth=1) / 250  # m S, with m uniform and S = Σ w_i b_i.
  # b is 1 with probability 5/9 (1, 3, 5, 7, 9), and E Σ w_i² = 2 / (width + 1) for Dirichlet(1, 1, 1).
  mean, variance = 5 / 9, (5 / 9) * (4 / 9) * 2 / 4
  np.testing.assert_allclose(mixed.mean(), mean / 2, atol=0.02)
  np.testing.assert_allclose((mixed**2).mean(), (variance + mean**2) / 3, atol=0.015)


@pytest.mark.slow
def test_chains_have_one_to_three_operations_of_nine(monkeypatch):
  def counting(image, index, *_, **__):
    return image + jnp.where(index > 0, 1, 0).astype(jnp.uint8)

  def index_of(image, index, *_, **__):
    return (10 * index).astype(jnp.uint8) * jnp.ones_like(image)

  even = {"width": 1, "alpha": 1e8}  # m is 1/2.
  lengths = np.round(2 * (_mixed(900, monkeypatch, counting, **even) - 100))
  np.testing.assert_allclose([np.sum(lengths == n) for n in (1, 2, 3)], 300, atol=60)
  assert (np.round(2 * (_mixed(50, monkeypatch, counting, depth=4, **even) - 100)) == 4).all()
  indices = np.round(_mixed(900, monkeypatch, index_of, level=0, depth=1, **even) / 5)
  np.testing.assert_allclose(np.bincount(indices.astype(int), minlength=10)[1:], 100, atol=40)
  assert indices.min() == 1 and indices.max() == 9


@pytest.mark.slow
def test_levels_are_uniform_up_to_the_severity(monkeypatch):
  def degrees(image, index, amount, **_):
    turned = index == operations.OPERATIONS.index("rotate")
    return jnp.where(turned, 100 + 4 * amount, 0).astype(jnp.uint8) * jnp.ones_like(image)

  result = 2 * _mixed(9000, monkeypatch, degrees, level=0, depth=1, width=1, alpha=1e8, severity=5.0)
  amounts = (result[result > 1] - 100) / 4
  assert len(amounts) > 800 and -15.01 < amounts.min() < -13.5 and 13.5 < amounts.max() < 15.01
  np.testing.assert_allclose(np.abs(amounts).mean(), 30 * 0.255, atol=0.6)
  np.testing.assert_allclose((amounts > 0).mean(), 0.5, atol=0.07)
  assert np.abs(amounts).min() < 1


@pytest.mark.parametrize(("options", "message"), [
  ({"name": "randaugment", "num_ops": 0}, r"num_ops must be in \[1, inf\): got 0"),
  ({"name": "randaugment", "magnitude": 31.0}, r"magnitude must be in \[0, 30\]: got 31"),
  ({"name": "augmix", "width": 0}, r"width must be in \[1, inf\): got 0"),
  ({"name": "augmix", "depth": 0}, r"depth must be in \[1, inf\) or -1: got 0"),
  ({"name": "augmix", "severity": 0.0}, r"severity must be in \[0.1, 10\]: got 0"),
  ({"name": "augmix", "consistency": -1.0}, r"consistency must be in \[0, inf\): got -1"),
  ({"name": "augmix", "alpha": 0.0}, r"alpha must be in \(0, inf\): got 0"),
  ({"name": "random_erasing", "probability": 1.5}, r"probability must be in \[0, 1\]: got 1.5"),
])
def test_options_out_of_range_are_refused_before_a_run(options, message):
  with pytest.raises(ValueError, match=message):
    data.build_augmentation(num_classes=3, **options)


def test_a_config_has_all_options():
  assert short("augmentation.name=augmix").augmentation.to_dict() == {
    "name": "augmix", "width": 3, "depth": -1, "severity": 3.0, "alpha": 1.0, "consistency": 12.0, "padding": 4,
    "flip": True}
  assert short("augmentation.name=randaugment").augmentation.to_dict() == {
    "name": "randaugment", "num_ops": 2, "magnitude": 9.0, "padding": 4, "flip": True}
  with pytest.raises(UserError, match="depht"):
    short("augmentation.name=augmix", "augmentation.depht=2")
