"""The dashboards, in the order in which one goes from all to one."""

from __future__ import annotations

from dashboards.boards.capacity import CAPACITY
from dashboards.boards.fleet import FLEET
from dashboards.boards.gpu import GPU_BOARD
from dashboards.boards.health import HEALTH
from dashboards.boards.host import HOST
from dashboards.boards.job import JOB
from dashboards.boards.node import NODE_BOARD
from dashboards.boards.serving import SERVING_BOARD
from dashboards.layout import Board

BOARDS: tuple[Board, ...] = (
    FLEET,
    JOB,
    SERVING_BOARD,
    NODE_BOARD,
    HOST,
    GPU_BOARD,
    HEALTH,
    CAPACITY,
)
