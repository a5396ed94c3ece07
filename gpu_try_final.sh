export PYTHONPATH=src PYTHONUNBUFFERED=1
T0=$(date +%s); say() { echo "== $1 $(( $(date +%s) - T0 )) s"; }
for n in 2 3 17 64 255 256 1000; do timeout 62 python gpu_try_warm.py check $n > /tmp/c-$n.txt 2>&1 & done
for n in 64 128 256 512 1024 2048 4096 8192; do timeout 62 python gpu_try_warm.py warm $n > /tmp/w-$n.txt 2>&1 & done
for n in 64 256 1024 2048; do PYTHONPATH=old_src timeout 62 python gpu_try_warm.py warm $n > /tmp/o-$n.txt 2>&1 & done
wait; cat /tmp/c-*.txt /tmp/w-*.txt | grep -v Warn | tail -40; say warmed
timeout 85 python gpu_try_final.py $OUT 2>&1 | grep -v -i warn | tee $OUT/final.txt; say timed
PYTHONPATH=old_src timeout 25 python gpu_try.py time old small 2>&1 | tee $OUT/old.txt; say old
(cd img_tree; PYTHONPATH=src:. timeout 112 python benchmarks/image_choices.py mnist --data-dir data_gpu --out $OUT/mnist.csv --processes 10 --members 1 > $OUT/log-mnist.txt 2>&1) &
IMG=$!
for n in 7 33 100 300; do timeout 98 python gpu_try.py check $n > /tmp/k-$n.txt 2>&1 & done
timeout 100 python -m pytest -q tests/test_cuda.py -x -k "not points" 2>&1 | tail -8 > /tmp/k-pytest.txt &
sleep 100; cat /tmp/k-*.txt | grep -v "^/" | cut -c1-160 | tee $OUT/check.txt; say checked
wait $IMG; tail -5 $OUT/log-mnist.txt; wc -l $OUT/*.csv; say end
