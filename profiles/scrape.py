"""What live metrics cost: python profiles/scrape.py LIST [--turns 7] [--seconds 4].

A Loader makes crops with its metrics served to nobody, and scraped once a second, in turns. Prints the ratio of the
rates, and the CPU time of a scrape, HTTP and the client in this process included.
"""

import argparse
import threading
import time
import urllib.request
from pathlib import Path
from statistics import median

import tfpipe

EVERY_S, SCRAPES = 1.0, 100


def main(args: argparse.Namespace) -> None:
    """Prints the cost."""
    keys = {"crop_image_size": [224, 224], "crop": "random_resized", "annotations": "none"}
    config = tfpipe.make_config({"data": {"train_filelist": str(args.list), **keys}})
    with tfpipe.Loader(config) as loader, tfpipe.serve_metrics(loader, 0) as exporter:
        rate(loader, 2 * args.seconds)
        ratios = []
        for _ in range(args.turns):
            alone = rate(loader, args.seconds)
            stop = threading.Event()
            scraper = threading.Thread(target=scrape_until, args=(stop, exporter.url))
            scraper.start()
            ratios.append(rate(loader, args.seconds) / alone)
            stop.set()
            scraper.join()
        time.sleep(2)  # until the pipeline has filled its buffers
        start_s = time.process_time()
        for _ in range(SCRAPES):
            scrape(exporter.url)
        scrape_ms = (time.process_time() - start_s) / SCRAPES * 1e3
    print(f"scraped every second: {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}) of the rate")
    print(f"CPU time of a scrape: at most {scrape_ms:.1f} ms, {scrape_ms / 10:.2f} % of one core")


def rate(loader: tfpipe.Loader, seconds: float) -> float:
    """Crops per second of CPU time of this process."""
    end_s, start_s, crops = time.perf_counter() + seconds, time.process_time(), 0
    while time.perf_counter() < end_s:
        crops += len(next(loader)[1])
    return crops / (time.process_time() - start_s)


def scrape_until(stop: threading.Event, url: str) -> None:
    """Scrapes once every EVERY_S."""
    while not stop.wait(EVERY_S):
        scrape(url)


def scrape(url: str) -> None:
    """Reads the metrics once."""
    with urllib.request.urlopen(url) as response:
        response.read()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=Path, help="a filelist")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4)
    main(parser.parse_args())
