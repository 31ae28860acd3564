"""Asks Prometheus, or what answers as it does, for the samples of a range, a piece at a time.

https://prometheus.io/docs/prometheus/latest/querying/api/
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import httpx2
import tenacity
from pydantic import AfterValidator, BaseModel, ValidationError

from gpunode.config.prometheus import PrometheusSettings
from gpunode.mistake import UsageError
from gpunode.report.fetch import AnswerTimeout, AnswerTooLarge, fetched
from gpunode.text import escaped, printable

log = logging.getLogger(__name__)

Labels = Mapping[str, str]

PIECE = 7 * 86_400
"""Seconds for which one request asks at most. What a server must hold in memory for it, and what it
answers, stays bounded."""

MAX_ANSWER_BYTES = 256 << 20
"""Bytes of an answer from which on less is asked for at a time."""

MAX_VALUE = 1e30
"""A figure beyond it is none that is measured, and sums of such have no value."""

ATTEMPTS = 4
MAX_LINE = 300

QUERY_TOO_LARGE = re.compile(
    r"too many (samples|points|chunks|series)|exceed|limit|maximum|time(d)? ?out|too long|too large"
    r"|too much",
    re.IGNORECASE,
)
"""What servers say of a question that asks for too much: ``query processing would load too many
samples into memory``, ``the query time range exceeds the limit``, ``query timed out``."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Equally spaced times, in Unix seconds, from the first to the last."""

    first: int
    last: int
    step: int

    def __len__(self) -> int:
        return max(0, (self.last - self.first) // self.step + 1)

    def __contains__(self, at: float) -> bool:
        return self.first <= at <= self.last and (at - self.first) % self.step == 0

    def pieces(self, most: int) -> Iterator[Moments]:
        """These times in pieces of at most ``most``."""
        for first in range(self.first, self.last + 1, most * self.step):
            yield Moments(first, min(self.last, first + (most - 1) * self.step), self.step)


def _fit_to_show(text: str) -> str:
    return printable(text, len(text))


class Series(BaseModel):
    """The samples of one series; the values of its labels come from nodes and jobs."""

    metric: dict[str, Annotated[str, AfterValidator(_fit_to_show)]] = {}
    values: list[tuple[float, float]] = []
    value: tuple[float, float] | None = None


class Data(BaseModel):
    """What was found."""

    result: list[Series] = []


class QueryResponse(BaseModel):
    """What Prometheus answers."""

    status: Literal["success", "error"]
    data: Data = Data()
    error: str = ""
    warnings: list[str] = []


class QueryTooLarge(Exception):
    """The query was too large for the server."""


class ServerBusy(Exception):
    """The server is busy, and may answer a second time."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """What proves to the server who asks; none of it is ever shown."""

    token: str = field(default="", repr=False)
    password: str = field(default="", repr=False)


class Prometheus:
    """A server; every method raises ``UsageError`` where it does not answer."""

    def __init__(
        self,
        settings: PrometheusSettings,
        secrets: Secrets,
        sleep: Callable[[float], None] = tenacity.nap.sleep,
    ) -> None:
        self.url = settings.url.rstrip("/")
        self.timeout = settings.timeout
        self.warnings: set[str] = set()
        self._sleep = sleep
        self._client = httpx2.Client(
            auth=(settings.username, secrets.password) if settings.username else None,
            headers=_headers(settings, secrets),
            verify=_tls(settings),
            timeout=settings.timeout,
        )

    def close(self) -> None:
        """End the connections to it."""
        self._client.close()

    def over(
        self, expression: str, moments: Moments, done: Callable[[int], None]
    ) -> Iterator[tuple[Labels, int, float]]:
        """What an expression comes to at each moment; tells of how many are ``done``."""
        waiting = list(moments.pieces(max(1, PIECE // moments.step)))[::-1]
        while waiting:
            piece = waiting.pop()
            form: dict[str, str | int] = {
                "query": expression,
                "start": piece.first,
                "end": piece.last,
                "step": piece.step,
                "nocache": 1,  # or VictoriaMetrics moves the moments to multiples of the step
            }
            try:
                answer = self._ask("/api/v1/query_range", form)
            except QueryTooLarge as error:
                if len(piece) == 1:
                    raise UsageError(f"{self.url}: {error}; of: {expression}") from error
                waiting += list(piece.pieces((len(piece) + 1) // 2))[::-1]
                continue
            for series in answer.data.result:
                for at, value in series.values:
                    if at in piece and abs(value) <= MAX_VALUE:  # not NaN either
                        yield series.metric, int(at), value
            done(len(piece))

    def at(self, expression: str, moment: int) -> Iterator[tuple[Labels, float]]:
        """What an expression comes to at a moment."""
        try:
            answer = self._ask("/api/v1/query", {"query": expression, "time": moment})
        except QueryTooLarge as error:
            raise UsageError(f"{self.url}: {error}; of: {expression}") from error
        for series in answer.data.result:
            if series.value is not None and abs(series.value[1]) <= MAX_VALUE:
                yield series.metric, series.value[1]

    def _ask(self, path: str, form: Mapping[str, str | int]) -> QueryResponse:
        """An answer, even of a server that is busy or restarts. Raises ``QueryTooLarge``."""
        patiently = tenacity.Retrying(
            sleep=self._sleep,
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            wait=tenacity.wait_exponential(multiplier=0.5, max=10.0),
            retry=tenacity.retry_if_exception_type(ServerBusy),
            before_sleep=self._log_retry,
            reraise=True,
        )
        try:
            answer: QueryResponse = patiently(self._request, path, form)
        except ServerBusy as error:
            raise UsageError(f"{self.url} (prometheus.url): {error}") from error
        for warning in {escaped(text, MAX_LINE) for text in answer.warnings} - self.warnings:
            log.warning("%s warns: %s", self.url, warning)
            self.warnings.add(warning)
        return answer

    def _log_retry(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        log.debug("%s: %s; asks again", self.url, error)  # the last error is told in any case

    def _request(self, path: str, form: Mapping[str, str | int]) -> QueryResponse:
        late = f"no answer within {self.timeout:g} s (prometheus.timeout)"
        try:
            response, body = fetched(
                self._client,
                "POST",
                f"{self.url}{path}",
                timeout=self.timeout,
                largest=MAX_ANSWER_BYTES,
                form=form,
            )
        except AnswerTooLarge as error:
            raise QueryTooLarge(str(error)) from error
        except httpx2.ConnectTimeout as error:
            raise ServerBusy(f"cannot connect within {self.timeout:g} s") from error
        except (AnswerTimeout, httpx2.TimeoutException) as error:
            raise QueryTooLarge(late) from error
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            raise UsageError(f"prometheus.url: {self.url}: {_line(str(error))}") from error
        except httpx2.TransportError as error:
            raise ServerBusy(f"cannot be reached: {_line(str(error))}") from error
        except httpx2.HTTPError as error:
            raise UsageError(f"{self.url}: {_line(str(error))}") from error
        return _parse_response(response, body, f"{self.url}{path}")


def _parse_response(response: httpx2.Response, body: bytes, url: str) -> QueryResponse:
    """The answer in a response. Raises ``QueryTooLarge``, ``ServerBusy`` and ``UsageError``."""
    status = response.status_code
    if response.is_redirect:
        where = escaped(response.headers.get("location", ""), MAX_LINE)
        raise UsageError(f"{url}: redirects to {where}; give that as prometheus.url if it is right")
    if status in (401, 403):
        raise UsageError(
            f"{url}: refuses access ({status}); see prometheus.token-file, prometheus.username and "
            "prometheus.tenant"
        )
    if status == 404:
        raise UsageError(f"{url}: not found; prometheus.url is what comes before /api/v1")
    try:
        answer = QueryResponse.model_validate_json(body)
    except ValidationError as error:
        kind = escaped(response.headers.get("content-type", "no type"), 60)
        if status == 413:
            raise QueryTooLarge("the question is too large (413)") from error
        if status == 429 or status >= 500:
            raise ServerBusy(f"answers with {status}") from error
        raise UsageError(
            f"{url}: answers with {status} and {kind}, not with Prometheus's JSON; is this the "
            "address of its API?"
        ) from error
    if answer.status == "success":
        return answer
    said = f"{_line(answer.error)} ({status})"
    if QUERY_TOO_LARGE.search(answer.error) and status != 429:
        raise QueryTooLarge(said)
    if status == 429 or status >= 500:
        raise ServerBusy(said)
    raise UsageError(f"{url}: {said}")


def quote(text: str) -> str:
    """A text between double quotes of PromQL, which takes no U+FFFD as itself."""
    return re.sub(r'(["\\])', r"\\\1", text).replace("\n", r"\n").replace("\ufffd", r"\ufffd")


def _line(text: str) -> str:
    return escaped(" ".join(text.split()), MAX_LINE)


def _headers(settings: PrometheusSettings, secrets: Secrets) -> dict[str, str]:
    headers = {}
    if secrets.token:
        headers["Authorization"] = f"Bearer {secrets.token}"
    if settings.tenant:
        headers["X-Scope-OrgID"] = settings.tenant
    return headers


def _tls(settings: PrometheusSettings) -> ssl.SSLContext:
    files = [settings.ca_file, settings.cert_file, settings.key_file]
    names = ", ".join(str(file) for file in files if file is not None)
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
        if settings.cert_file is not None:
            context.load_cert_chain(settings.cert_file, settings.key_file)
    except OSError as error:  # ssl.SSLError is one
        raise UsageError(f"{names}: {error.strerror or 'not a certificate in PEM'}") from error
    return context
