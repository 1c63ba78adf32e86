"""A real headless Chromium, driven by Selenium; both are Debian's (chromium, chromium-driver)."""

import contextlib
import os
import shutil
from pathlib import Path

import pytest
from axe_core_python.selenium import Axe
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
# Switches that keep Chromium from sending requests of its own.
QUIET = (
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--disable-gpu",
    "--disable-quic", "--disable-sync", "--headless", "--no-first-run", "--no-sandbox",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip
WAIT_S = 60
SCREENSHOTS = os.environ.get("TUNNEL_POOL_SCREENSHOTS")  # a folder to keep them in

needs_chromium = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs Debian's Chromium: apt-get install chromium chromium-driver"
)


class Browser:
    def __init__(self, driver):
        self.driver = driver

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector):
        return self.one(selector).text

    def script(self, text, *arguments):
        return self.driver.execute_script(text, *arguments)

    def until(self, condition, what, timeout_s=WAIT_S):
        wait = WebDriverWait(self.driver, timeout_s, ignored_exceptions=[Exception])
        return wait.until(lambda _: condition(), f"waited for {what}")

    def until_text(self, selector, text):
        self.until(lambda: text in self.text(selector), f"{text!r} in {selector}")

    def click(self, selector):
        self.until(lambda: self.one(selector).is_enabled() and self.one(selector).is_displayed(), selector)
        self.one(selector).click()

    def screenshot(self, name):
        if SCREENSHOTS:
            self.driver.save_screenshot(str(Path(SCREENSHOTS) / name))

    def serious(self):
        """Return the violations of accessibility that axe-core finds, without minor ones, and the HTML concerned."""
        found = Axe().run(self.driver)["violations"]
        return [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found if rule["impact"] != "minor"]

    def complaints(self):
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


@contextlib.contextmanager
def browser(profile, width=1280, height=1000):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (*QUIET, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
