"""Its settings; a process of its own is told its databases and its broker by the environment."""

from __future__ import annotations

import json
import os

SECRET_KEY = "of the tests"
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "testserver"]
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "tallystick.django",
    "storefront",
]
MIDDLEWARE = [
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "storefront.urls"
DATABASES = json.loads(
    os.environ.get("STOREFRONT_DATABASES", '{"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}')
)
TALLYSTICK = json.loads(os.environ.get("STOREFRONT_TALLYSTICK", '{"GROUP": "storefront"}'))
