"""Writes one result of allure-pytest for each test that runs in ranks."""
